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
    def test_both_ways_are_two_flows_of_which_one_leads_where_topics_are_shared(self) -> None:
        pipeline = Pipeline("m", bootstrap="e:1")
        there, back = mirror(pipeline, "e=e:1", "w=w:2", topics="orders", both=True, naming="identity")
        assert [*pipeline.flows] == ["e-to-w", "w-to-e"]
        assert (there.leads, back.leads) == (True, False)
        assert all(one.leads for one in directions("e=e:1", "w=w:2", topics="t", both=True))
        assert (back.source, back.target) == (there.target, there.source)

    def test_clusters_are_named_or_get_a_name(self) -> None:
        assert MirrorCluster.parse("east=h:1,i:2") == MirrorCluster("east", "h:1,i:2")
        assert MirrorCluster.parse("h.example:1").name == "h-example-1"
        one, other = MirrorCluster.parse("b=h:1"), MirrorCluster.parse("a=i:1")
        assert mirror_name(one, other) == mirror_name(other, one) == "mirror-a-b"

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"source": "e=h:1", "target": "e=i:1"}, "both clusters are called e"),
            ({"forward": True}, "forward is said of topics that keep their names"),
            ({"naming": "suffix"}, "naming='suffix' is unknown"),
            ({"interval": "soon"}, "'soon' is not a duration"),
            ({"groups": "("}, "no regular expression"),
            ({"source": "e.u=h:1"}, "cannot be the name of a cluster"),
            ({"source": "e=h:x"}, "is not host:port"),
        ],
    )
    def test_what_is_wrong_is_told(self, given: dict[str, object], told: str) -> None:
        said = {"source": "e=h:1", "target": "w=i:1", "topics": "orders"} | given
        with pytest.raises(ClientError, match=re.escape(told)):
            directions(**said)  # type: ignore[arg-type]
