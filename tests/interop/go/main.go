// Drives franz-go against a broker: interop BOOTSTRAP SCENARIO JSON-ARGUMENTS.
//
// It prints one JSON object per line. Scenarios, arguments and lines are those of the programs of the other
// languages beside it, so that one test compares them all.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	patience   = 60 * time.Second
	shortBytes = 64
)

type options struct {
	Topic      string            `json:"topic"`
	ClientID   string            `json:"client_id"`
	File       string            `json:"file"`
	Timestamps []int64           `json:"timestamps"`
	Count      int               `json:"count"`
	Config     map[string]string `json:"config"`
}

type row struct {
	Partition int32        `json:"partition"`
	Key       *string      `json:"key"`
	Value     *string      `json:"value"`
	Headers   [][2]*string `json:"headers"`
	Timestamp *int64       `json:"timestamp"`
}

type line map[string]any

func main() {
	var o options
	check(json.Unmarshal([]byte(os.Args[3]), &o))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	scenarios := map[string]func(context.Context, string, options){
		"produce": produce, "consume": consume, "offsets": offsets, "admin": admin,
		"telemetry": telemetry, "transactions": transactions, "recover": recovers, "group": group,
	}
	scenarios[os.Args[2]](ctx, os.Args[1], o)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func say(op string, fields line) {
	if fields == nil {
		fields = line{}
	}
	fields["op"] = op
	out, err := json.Marshal(fields)
	check(err)
	fmt.Println(string(out))
}

func errorName(err error) string {
	var e *kerr.Error
	if err == nil {
		return "NONE"
	}
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

func codeName(code int16) string { return errorName(kerr.ErrorForCode(code)) }

// shown gives short bytes as they are and long ones by their digest.
func shown(b []byte) any {
	if b == nil {
		return nil
	}
	if len(b) <= shortBytes {
		return "b64:" + base64.StdEncoding.EncodeToString(b)
	}
	digest := sha256.Sum256(b)
	return fmt.Sprintf("sha256:%s:%d", hex.EncodeToString(digest[:]), len(b))
}

func decoded(s *string) []byte {
	if s == nil {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(*s)
	check(err)
	return b
}

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// client takes the Java names of settings, so that one set of arguments serves every language.
func client(bootstrap string, o options, more ...kgo.Opt) *kgo.Client {
	opts := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.ClientID(o.ClientID),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(20_000_000), kgo.MaxBufferedBytes(200_000_000),
	}
	if codec, ok := codecs[o.Config["compression.type"]]; ok {
		opts = append(opts, kgo.ProducerBatchCompression(codec))
	}
	if o.Config["enable.idempotence"] == "false" {
		opts = append(opts, kgo.DisableIdempotentWrite())
	}
	if o.Config["acks"] == "1" {
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()))
	}
	if o.Config["enable.metrics.push"] == "false" {
		opts = append(opts, kgo.DisableClientMetrics())
	}
	if o.Config["isolation.level"] == "read_committed" {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	c, err := kgo.NewClient(append(opts, more...)...)
	check(err)
	return c
}

func record(topic string, r row) *kgo.Record {
	out := &kgo.Record{Topic: topic, Partition: r.Partition, Key: decoded(r.Key), Value: decoded(r.Value)}
	if r.Timestamp != nil {
		out.Timestamp = time.UnixMilli(*r.Timestamp)
	}
	for _, h := range r.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: *h[0], Value: decoded(h[1])})
	}
	return out
}

func produce(ctx context.Context, bootstrap string, o options) {
	raw, err := os.ReadFile(o.File)
	check(err)
	var rows []row
	check(json.Unmarshal(raw, &rows))
	c := client(bootstrap, o)
	defer c.Close()
	records := make([]*kgo.Record, len(rows))
	for i, r := range rows {
		records[i] = record(o.Topic, r)
	}
	// Asynchronously, then in the order asked: ProduceSync gives results in the order of completion.
	results := make([]error, len(rows))
	for i, r := range records {
		c.Produce(ctx, r, func(_ *kgo.Record, err error) { results[i] = err })
	}
	check(c.Flush(ctx))
	for i, r := range records {
		if results[i] != nil {
			say("refused", line{"error": errorName(results[i])})
			continue
		}
		say("ack", line{"partition": r.Partition, "offset": r.Offset})
	}
}

func consume(ctx context.Context, bootstrap string, o options) {
	finder := client(bootstrap, o)
	defer finder.Close()
	ends, err := kadm.NewClient(finder).ListEndOffsets(ctx, o.Topic)
	check(err)
	starts, err := kadm.NewClient(finder).ListStartOffsets(ctx, o.Topic)
	check(err)
	assigned, left, sum := map[int32]kgo.Offset{}, map[int32]int64{}, int64(0)
	ends.Each(func(e kadm.ListedOffset) {
		check(e.Err)
		assigned[e.Partition] = kgo.NewOffset().AtStart()
		sum += e.Offset
		if s, _ := starts.Lookup(o.Topic, e.Partition); s.Offset < e.Offset {
			left[e.Partition] = e.Offset
		}
	})
	c := client(bootstrap, o, kgo.KeepControlRecords(), kgo.FetchMaxPartitionBytes(20_000_000),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{o.Topic: assigned}))
	defer c.Close()
	for len(left) > 0 {
		fetches := c.PollFetches(ctx)
		for _, e := range fetches.Errors() {
			check(e.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				sayRecord(r)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	say("end", line{"partitions": len(assigned), "end_offsets": sum})
}

func sayRecord(r *kgo.Record) {
	headers := [][2]any{}
	for _, h := range r.Headers {
		headers = append(headers, [2]any{h.Key, shown(h.Value)})
	}
	kind := map[int8]string{-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[r.Attrs.TimestampType()]
	say("record", line{
		"partition": r.Partition, "offset": r.Offset, "timestamp": r.Timestamp.UnixMilli(), "timestamp_type": kind,
		"key": shown(r.Key), "value": shown(r.Value), "headers": headers,
	})
}

func offsets(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o)
	defer c.Close()
	adm := kadm.NewClient(c)
	starts, err := adm.ListStartOffsets(ctx, o.Topic)
	check(err)
	ends, err := adm.ListEndOffsets(ctx, o.Topic)
	check(err)
	say("range", line{"beginning": at(starts, o.Topic).Offset, "end": at(ends, o.Topic).Offset})
	for _, t := range o.Timestamps {
		// The request itself: kadm replaces "nothing that late" by the end offset.
		found, at := offsetForTimestamp(ctx, c, o.Topic, t)
		say("at", line{"asked": t, "offset": found, "timestamp": at})
	}
}

func at(l kadm.ListedOffsets, topic string) kadm.ListedOffset {
	o, _ := l.Lookup(topic, 0)
	check(o.Err)
	return o
}

// telemetry writes something, so that there is something to tell, and stays long enough to ask what is wanted.
func telemetry(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o)
	defer c.Close()
	check(c.ProduceSync(ctx, &kgo.Record{Topic: o.Topic, Value: []byte("x")}).FirstErr())
	time.Sleep(2 * time.Second)
	say("produced", nil)
}

func transactions(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o, kgo.TransactionalID(o.Config["transactional.id"]))
	defer c.Close()
	for i := 0; i < o.Count; i++ {
		check(c.BeginTransaction())
		word := map[bool]string{true: "committed", false: "aborted"}[i%2 == 0]
		for n := 0; n < 5; n++ {
			c.Produce(ctx, &kgo.Record{Topic: o.Topic, Key: fmt.Appendf(nil, "k%d", n), Value: fmt.Appendf(nil, "%s-%d-%d", word, i, n)}, nil)
		}
		check(c.Flush(ctx))
		check(c.EndTransaction(ctx, kgo.TransactionEndTry(i%2 == 0)))
	}
	say("transactions", line{"done": o.Count})
}

// recovers commits one record, waits for a file, then commits others. A transaction that fails is aborted and repeated;
// a client that cannot go on is replaced by a new one.
func recovers(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o, kgo.TransactionalID(o.Config["transactional.id"]))
	check(c.BeginTransaction())
	check(commit(ctx, c, o.Topic, "first", 1))
	for {
		if _, err := os.Stat(o.File); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	for done := false; !done; {
		err := c.BeginTransaction()
		if err == nil {
			if err = commit(ctx, c, o.Topic, "new", o.Count); err == nil {
				done = true
				continue
			}
			say("aborted", line{"error": errorName(err)})
			err = c.EndTransaction(ctx, kgo.TryAbort)
		}
		if err != nil {
			say("replaced", line{"error": errorName(err)})
			c.Close()
			c = client(bootstrap, o, kgo.TransactionalID(o.Config["transactional.id"]))
		}
	}
	c.Close()
}

func commit(ctx context.Context, c *kgo.Client, topic, word string, count int) error {
	var failed kgo.FirstErrPromise
	for n := 0; n < count; n++ {
		c.Produce(ctx, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%s-%d", word, n)}, failed.Promise())
	}
	if err := failed.Err(); err != nil {
		return err
	}
	if err := c.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	say("committed", line{"count": count})
	return nil
}

// group is a member of a group: reads so many records, commits them, and tells where the group stands.
func group(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o, kgo.ConsumerGroup(o.Config["group.id"]), kgo.ConsumeTopics(o.Topic), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer c.Close()
	for left := o.Count; left > 0; {
		fetches := c.PollFetches(ctx)
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			say("record", line{"partition": r.Partition, "offset": r.Offset, "key": shown(r.Key), "value": shown(r.Value)})
			left--
		})
	}
	check(c.CommitUncommittedOffsets(ctx))
	found, err := kadm.NewClient(c).FetchOffsets(ctx, o.Config["group.id"])
	check(err)
	found.Each(func(r kadm.OffsetResponse) { say("committed", line{"partition": r.Partition, "offset": r.At}) })
}
