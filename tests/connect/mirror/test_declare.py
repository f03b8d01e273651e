"""Declaring a mirror: directions, names of clusters, mistakes."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pyspark", reason='needs pip install "millstream[spark]"')
from millstream.client.errors import ClientError
from millstream.connect.mirror.declare import directions, mirror, mirror_name
from millstream.connect.mirror.direction import MirrorCluster
from millstream.pipelines import Pipeline


class TestDeclarations:
    def test_both_directions_are_flows_and_one_leads_shared_topics(self) -> None:
        pipeline = Pipeline("m", bootstrap="e:1")
        forth, back = mirror(
            pipeline, "e=e:1", "w=w:2", topics="orders", both=True, naming="identity"
        )
        assert [*pipeline.flows] == ["e-to-w", "w-to-e"]
        assert (forth.leads, back.leads) == (True, False)
        assert all(
            direction.leads for direction in directions("e=e:1", "w=w:2", topics="t", both=True)
        )
        assert (back.source, back.target) == (forth.target, forth.source)

    def test_clusters_have_a_name_or_get_one(self) -> None:
        assert MirrorCluster.parse("east=h:1,i:2") == MirrorCluster("east", "h:1,i:2")
        assert MirrorCluster.parse("h.example:1").name == "h-example-1"
        first, second = MirrorCluster.parse("b=h:1"), MirrorCluster.parse("a=i:1")
        assert mirror_name(first, second) == mirror_name(second, first) == "mirror-a-b"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"source": "e=h:1", "target": "e=i:1"}, "both clusters are called e"),
            ({"forward": True}, "forward applies to topics that keep their names"),
            ({"naming": "suffix"}, "naming='suffix' is unknown"),
            ({"interval": "soon"}, "'soon' is not a duration"),
            ({"groups": "("}, "not a regular expression"),
            ({"source": "e.u=h:1"}, "cannot be the name of a cluster"),
            ({"source": "e=h:x"}, "is not host:port"),
        ],
    )
    def test_invalid_declaration_is_rejected(
        self, options: dict[str, object], message: str
    ) -> None:
        arguments = {"source": "e=h:1", "target": "w=i:1", "topics": "orders"} | options
        with pytest.raises(ClientError, match=re.escape(message)):
            directions(**arguments)  # type: ignore[arg-type]
