"""Point to point: the consumers of one group share the records; each record goes to one of them.

millstream serve &
python examples/clients/point_to_point.py [BOOTSTRAP]
"""

import sys
import threading
from collections import Counter

from millstream import Admin, Consumer, Producer

TOPIC, GROUP = "example-jobs", "example-workers"
JOBS = 300


def main(bootstrap: str) -> None:
    with Admin(bootstrap) as admin:
        if not admin.topics.exists(TOPIC):
            admin.topics.create(TOPIC, partitions=6)

    done: Counter[str] = Counter()  # job -> how often it was done
    workers: Counter[str] = Counter()  # worker -> how many jobs it did

    def work(name: str) -> None:
        with Consumer(bootstrap, TOPIC, group=GROUP, value="str", until_end=True) as consumer:
            for record in consumer:
                done[record.value] += 1
                workers[name] += 1

    with Producer(bootstrap, value="str") as producer:
        for number in range(JOBS):
            producer.send(TOPIC, f"job {number}", key=str(number))

    threads = [threading.Thread(target=work, args=(f"worker {number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(done) == {f"job {number}" for number in range(JOBS)}
    print(f"{len(done)} jobs done by {len(workers)} workers: {dict(workers)}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092")
