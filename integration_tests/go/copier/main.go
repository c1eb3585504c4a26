// A member of a group that copies the records of the topic "go-input" to "go-output" by franz-go,
// some at a time in a transaction with their offsets. Every fourth transaction is aborted, and its
// records are read again. It prints "COMMITTED n" with the number of records, and runs until its
// standard input ends.
//
// usage: copier BOOTSTRAP TRANSACTIONAL_ID
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.TransactionalID(os.Args[2]),
		kgo.TransactionTimeout(20*time.Second),
		kgo.ConsumerGroup("go"),
		kgo.ConsumeTopics("go-input"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(time.Second),
	)
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	for number := 1; ctx.Err() == nil; number++ {
		fetches := session.PollRecords(ctx, 20)
		if ctx.Err() != nil {
			break
		}
		if fetches.NumRecords() == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			fmt.Println("FAILED", err)
			os.Exit(1)
		}
		aborts := number%4 == 0
		failed := kgo.AbortingFirstErrPromise(session.Client())
		fetches.EachRecord(func(record *kgo.Record) {
			value := string(record.Value)
			if aborts {
				value = "aborted " + value
			}
			copied := &kgo.Record{
				Topic: "go-output", Partition: record.Partition, Value: []byte(value)}
			session.Produce(ctx, copied, failed.Promise())
		})
		wanted := kgo.TransactionEndTry(failed.Err() == nil && !aborts)
		committed, err := session.End(context.Background(), wanted)
		if err != nil {
			fmt.Println("FAILED", err)
			os.Exit(1)
		}
		if committed {
			fmt.Println("COMMITTED", fetches.NumRecords())
		}
	}
	session.Close()
	fmt.Println("CLOSED")
}
