// The admin scenario: one call after another on a topic of its own, one JSON line per call, as in the other languages.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type administrator struct {
	ctx    context.Context
	client *kgo.Client
	adm    *kadm.Client
	topic  string
	node   int32
}

func admin(ctx context.Context, bootstrap string, o options) {
	c := client(bootstrap, o)
	defer c.Close()
	a := &administrator{ctx: ctx, client: c, adm: kadm.NewClient(c), topic: o.Topic}
	a.cluster()
	a.createTopics()
	a.describeTopics()
	a.createPartitions()
	a.configs()
	a.records()
	a.logDirs()
	a.resourcesAndFeatures()
	a.deleteTopics()
}

func text(s string) *string { return &s }

func (a *administrator) cluster() {
	meta, err := a.adm.BrokerMetadata(a.ctx)
	check(err)
	a.node = meta.Brokers[0].NodeID
	say("describe_cluster", line{"nodes": len(meta.Brokers), "controller_known": meta.Controller >= 0, "cluster_id_length": len(meta.Cluster)})
}

func (a *administrator) create(topic string, partitions int32, rf int16, configs map[string]*string) string {
	r, err := a.adm.CreateTopic(a.ctx, partitions, rf, configs, topic)
	if err == nil {
		err = r.Err
	}
	return errorName(err)
}

func (a *administrator) createTopics() {
	r, err := a.adm.CreateTopic(a.ctx, 2, 1, map[string]*string{"retention.ms": text("3600000")}, a.topic)
	check(err)
	say("create_topic", line{"partitions": r.NumPartitions, "replication_factor": r.ReplicationFactor,
		"has_id": r.ID != kadm.TopicID{}, "retention_ms": *r.Configs["retention.ms"].Value})
	say("create_again", line{"error": a.create(a.topic, 2, 1, nil)})
	say("create_wrong_config", line{"error": a.create(a.topic+"-wrong", 1, 1, map[string]*string{"retention.ms": text("soon")})})
	say("create_replication_9", line{"error": a.create(a.topic+"-wide", 1, 9, nil)})
	say("create_bad_name", line{"error": a.create("a b", 1, 1, nil)})
	v, err := a.adm.ValidateCreateTopics(a.ctx, 3, -1, nil, a.topic+"-tried")
	check(err)
	say("validate_only", line{"partitions": v[a.topic+"-tried"].NumPartitions})
}

func (a *administrator) described(topic string) kadm.TopicDetail {
	d, err := a.adm.ListTopics(a.ctx, topic)
	check(err)
	return d[topic]
}

func (a *administrator) describeTopics() {
	d := a.described(a.topic)
	led := true
	for _, p := range d.Partitions {
		led = led && p.Leader == a.node && len(p.Replicas) == 1 && len(p.ISR) == 1
	}
	say("describe_topic", line{"partitions": len(d.Partitions), "internal": d.IsInternal, "has_id": d.ID != kadm.TopicID{}, "led_by_its_replica": led})
	req := kmsg.NewPtrMetadataRequest()
	t := kmsg.NewMetadataRequestTopic()
	t.TopicID = d.ID
	req.Topics = append(req.Topics, t)
	byID, err := req.RequestWith(a.ctx, a.client)
	check(err)
	say("describe_topic_by_id", line{"same_name": byID.Topics[0].Topic != nil && *byID.Topics[0].Topic == a.topic})
	say("describe_unknown", line{"error": errorName(a.described(a.topic + "-nowhere").Err)})
	all, err := a.adm.ListTopics(a.ctx)
	check(err)
	say("list_topics", line{"has_it": all.Has(a.topic)})
}

func (a *administrator) increase(count int) string {
	r, err := a.adm.UpdatePartitions(a.ctx, count, a.topic)
	check(err)
	return errorName(r[a.topic].Err)
}

func (a *administrator) createPartitions() {
	say("create_partitions", line{"error": a.increase(4)})
	say("fewer_partitions", line{"error": a.increase(3)})
	say("partitions_now", line{"count": len(a.described(a.topic).Partitions)})
}

var sources = map[kmsg.ConfigSource]string{
	kmsg.ConfigSourceDynamicTopicConfig: "DYNAMIC_TOPIC_CONFIG", kmsg.ConfigSourceDefaultConfig: "DEFAULT_CONFIG",
	kmsg.ConfigSourceDynamicDefaultBrokerConfig: "DYNAMIC_DEFAULT_BROKER_CONFIG", kmsg.ConfigSourceStaticBrokerConfig: "STATIC_BROKER_CONFIG",
}

func (a *administrator) config(topic string) kadm.ResourceConfig {
	r, err := a.adm.DescribeTopicConfigs(a.ctx, topic)
	check(err)
	return r[0]
}

func entry(r kadm.ResourceConfig, name string) *kadm.Config {
	for i := range r.Configs {
		if r.Configs[i].Key == name {
			return &r.Configs[i]
		}
	}
	return &kadm.Config{}
}

func (a *administrator) shown(name string) string {
	c := entry(a.config(a.topic), name)
	return c.MaybeValue() + " " + sources[c.Source]
}

func (a *administrator) settled(name, expected string) string {
	for i := 0; i < 100 && entry(a.config(a.topic), name).MaybeValue() != expected; i++ {
		time.Sleep(50 * time.Millisecond)
	}
	return a.shown(name)
}

func (a *administrator) alter(op kadm.IncrementalOp, name, value string) string {
	change := kadm.AlterConfig{Op: op, Name: name, Value: text(value)}
	if op == kadm.DeleteConfig {
		change.Value = nil
	}
	r, err := a.adm.AlterTopicConfigs(a.ctx, []kadm.AlterConfig{change}, a.topic)
	check(err)
	return errorName(r[0].Err)
}

func (a *administrator) alterBroker(op kadm.IncrementalOp, name, value string, brokers ...int32) string {
	r, err := a.adm.AlterBrokerConfigs(a.ctx, []kadm.AlterConfig{{Op: op, Name: name, Value: text(value)}}, brokers...)
	check(err)
	return errorName(r[0].Err)
}

func (a *administrator) configs() {
	say("describe_configs", line{"retention_ms": a.shown("retention.ms"), "segment_bytes": a.shown("segment.bytes"), "cleanup_policy": a.shown("cleanup.policy")})
	policy := func() string { return entry(a.config(a.topic), "cleanup.policy").MaybeValue() }
	say("alter_set", line{"error": a.alter(kadm.SetConfig, "retention.ms", "7200000"), "retention_ms": a.shown("retention.ms")})
	say("alter_append", line{"error": a.alter(kadm.AppendConfig, "cleanup.policy", "compact"), "cleanup_policy": policy()})
	say("alter_subtract", line{"error": a.alter(kadm.SubtractConfig, "cleanup.policy", "compact"), "cleanup_policy": policy()})
	say("alter_delete", line{"error": a.alter(kadm.DeleteConfig, "retention.ms", ""), "retention_ms": a.shown("retention.ms")})
	say("alter_unknown", line{"error": a.alter(kadm.SetConfig, "no.such.setting", "1")})
	say("alter_wrong_value", line{"error": a.alter(kadm.SetConfig, "retention.ms", "soon")})
	say("alter_append_number", line{"error": a.alter(kadm.AppendConfig, "retention.ms", "1")})
	say("describe_configs_unknown", line{"error": errorName(a.config(a.topic + "-nowhere").Err)})
	broker, err := a.adm.DescribeBrokerConfigs(a.ctx, a.node)
	check(err)
	say("broker_configs", line{"many": len(broker[0].Configs) > 50})
	say("broker_default_set", line{"error": a.alterBroker(kadm.SetConfig, "log.retention.ms", "604000000"), "topic_sees": a.settled("retention.ms", "604000000")})
	say("broker_default_delete", line{"error": a.alterBroker(kadm.DeleteConfig, "log.retention.ms", ""), "topic_sees": a.settled("retention.ms", "604800000")})
	say("broker_read_only", line{"error": a.alterBroker(kadm.SetConfig, "log.dirs", "elsewhere", a.node)})
}

func offsetForTimestamp(ctx context.Context, c *kgo.Client, topic string, timestamp int64) (int64, int64) {
	req := kmsg.NewPtrListOffsetsRequest()
	t, p := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	req.ReplicaID, req.TimeoutMillis, t.Topic, p.Timestamp = -1, 5000, topic, timestamp
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	r, err := req.RequestWith(ctx, c)
	check(err)
	found := r.Topics[0].Partitions[0]
	return found.Offset, found.Timestamp
}

func (a *administrator) records() {
	start := time.Now().UnixMilli() - 60_000
	for i := int64(0); i < 10; i++ {
		later := i
		if i == 6 {
			later = 500
		}
		r := &kgo.Record{Topic: a.topic, Value: make([]byte, 20), Timestamp: time.UnixMilli(start + later)}
		check(a.client.ProduceSync(a.ctx, r).FirstErr())
	}
	first := kadm.TopicsSet{}
	first.Add(a.topic, 0)
	producers, err := a.adm.DescribeProducers(a.ctx, first)
	check(err)
	active := producers.SortedProducers()
	say("describe_producers", line{"count": len(active), "last_sequence": active[0].LastSequence})
	say("delete_records", line{"low_watermark": a.deleteRecords(4).LowWatermark})
	say("delete_records_beyond", line{"error": errorName(a.deleteRecords(99).Err)})
	offset := func(spec int64) int64 { o, _ := offsetForTimestamp(a.ctx, a.client, a.topic, spec); return o }
	_, newest := offsetForTimestamp(a.ctx, a.client, a.topic, -3)
	say("list_offsets", line{"earliest": offset(-2), "latest": offset(-1), "max_timestamp": offset(-3), "max_timestamp_ms": newest - start,
		"for_timestamp": offset(start + 5), "beyond": offset(start + 3_600_000), "earliest_local": offset(-4), "latest_tiered": offset(-5)})
}

func (a *administrator) deleteRecords(before int64) kadm.DeleteRecordsResponse {
	upto := kadm.Offsets{}
	upto.Add(kadm.Offset{Topic: a.topic, Partition: 0, At: before, LeaderEpoch: -1})
	r, err := a.adm.DeleteRecords(a.ctx, upto)
	check(err)
	out, _ := r.Lookup(a.topic, 0)
	return out
}

func (a *administrator) logDirs() {
	set := kadm.TopicsSet{}
	set.Add(a.topic, 0)
	described, err := a.adm.DescribeAllLogDirs(a.ctx, set)
	check(err)
	dirs, size, free := described[a.node], int64(0), true
	for _, d := range dirs {
		free = free && d.UsableBytes > 0
		if p, ok := d.Topics.Lookup(a.topic, 0); ok {
			size += p.Size
		}
	}
	say("describe_log_dirs", line{"dirs": len(dirs), "size_known": size > 0, "free_known": free})
	req := kadm.AlterReplicaLogDirsReq{}
	req.Add("/no/such/directory", set)
	moved, err := a.adm.AlterBrokerReplicaLogDirs(a.ctx, a.node, req)
	check(err)
	say("alter_log_dir_unknown", line{"error": errorName(moved[a.topic][0].Err)})
}

func (a *administrator) resourcesAndFeatures() {
	resources, err := kmsg.NewPtrListConfigResourcesRequest().RequestWith(a.ctx, a.client)
	check(err)
	brokers, topics := []string{}, []string{}
	for _, r := range resources.ConfigResources {
		if r.Type == int8(kmsg.ConfigResourceTypeBroker) {
			brokers = append(brokers, "BROKER")
		} else if r.Type == int8(kmsg.ConfigResourceTypeTopic) && r.Name == a.topic {
			topics = append(topics, "TOPIC")
		}
	}
	say("list_config_resources", line{"types": append(brokers, topics...)})
	versions, err := a.adm.ApiVersions(a.ctx)
	check(err)
	say("describe_features", line{"finalized_known": versions[a.node].Err == nil})
	req := kmsg.NewPtrUpdateFeaturesRequest()
	update := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	update.Feature, update.MaxVersionLevel, update.UpgradeType, req.TimeoutMillis = "no.such.version", 1, 1, 5000
	req.FeatureUpdates = append(req.FeatureUpdates, update)
	answer, err := req.RequestWith(a.ctx, a.client)
	check(err)
	say("update_features_unknown", line{"error": codeName(answer.ErrorCode)})
}

func (a *administrator) deleteTopics() {
	req := kmsg.NewPtrDeleteTopicsRequest()
	byID := kmsg.NewDeleteTopicsRequestTopic()
	byID.TopicID, req.TimeoutMillis = a.described(a.topic).ID, 5000
	req.Topics = append(req.Topics, byID)
	r, err := req.RequestWith(a.ctx, a.client)
	check(err)
	say("delete_topic_by_id", line{"error": codeName(r.Topics[0].ErrorCode)})
	again, err := a.adm.DeleteTopics(a.ctx, a.topic)
	check(err)
	say("delete_topic_again", line{"error": errorName(again[a.topic].Err)})
	say("describe_deleted", line{"error": a.unknownNow()})
}

// unknownNow asks the broker itself: described may answer from what the client remembers.
func (a *administrator) unknownNow() string {
	req, t := kmsg.NewPtrMetadataRequest(), kmsg.NewMetadataRequestTopic()
	t.Topic = text(a.topic)
	req.Topics = append(req.Topics, t)
	r, err := req.RequestWith(a.ctx, a.client)
	check(err)
	return codeName(r.Topics[0].ErrorCode)
}
