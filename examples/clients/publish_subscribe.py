"""Publish and subscribe: every group gets every record, and remembers by itself how far it has read.

millstream serve &
python examples/clients/publish_subscribe.py [BOOTSTRAP]
"""

import sys

from millstream import Consumer, Producer

TOPIC = "example-news"


def read(bootstrap: str, group: str) -> list[str]:
    """What the group has not read yet."""
    with Consumer(bootstrap, TOPIC, group=f"example-{group}", value="str", until_end=True) as consumer:
        return [record.value for record in consumer]


def main(bootstrap: str) -> None:
    with Producer(bootstrap, value="str") as producer:
        producer.send(TOPIC, "the mill turns")
        producer.send(TOPIC, "the stream flows")

    for group in ("mail", "archive"):
        print(f"{group}: {read(bootstrap, group)}")

    with Producer(bootstrap, value="str") as producer:
        producer.send(TOPIC, "rain is coming")

    for group in ("mail", "archive"):
        print(f"{group}, later: {read(bootstrap, group)}")
    print(f"audit, new: {read(bootstrap, 'audit')}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
