#!/bin/sh
# A first minute with nothing but the broker: no Spark, no Java. `make try` runs it.
# It shows each command before it runs it. The broker has a free port and a temporary directory, and is gone at the end.
set -eu

directory=$(mktemp -d "${TMPDIR:-/tmp}/millstream-try-XXXXXX")
broker=
finish() {
  if [ -n "$broker" ]; then
    kill "$broker" 2>/dev/null || true
    wait "$broker" 2>/dev/null || true
  fi
  rm -rf "$directory"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

show() {
  printf '\n$ %s\n' "$1"
  sh -ec "$1" 2>&1
}

printf '$ millstream serve\n'
: >"$directory/log" # the broker may not have opened it when it is first read
millstream serve --set listeners=PLAINTEXT://127.0.0.1:0 --set log.dirs="$directory/data" >>"$directory/log" 2>&1 &
broker=$!
until grep -q '^millstream ready' "$directory/log"; do
  if ! kill -0 "$broker" 2>/dev/null; then
    cat "$directory/log" >&2
    exit 1
  fi
  sleep 0.05
done
grep '^millstream ready' "$directory/log"
MILLSTREAM_BOOTSTRAP=$(sed -n 's/^millstream ready: .*PLAINTEXT:\/\/\([^,]*\),.*/\1/p' "$directory/log")
export MILLSTREAM_BOOTSTRAP

show 'millstream topics create orders --partitions 3'
show "printf 'ada:1 tea\\ngrace:2 coffee\\nada:3 cakes\\n' | millstream produce orders --key-separator :"
show "millstream consume orders --exit -f '%k ordered %s (partition %p, offset %o)\\n'"
show 'seq 100000 | millstream produce numbers'
show 'millstream topics list'

cat <<'END'

That was a Kafka broker. Start one that stays with `millstream serve`: any Kafka client finds it at localhost:9092.
`make demo` shows pipelines on Spark; README.md and docs/tutorial.md go on from here.
END
