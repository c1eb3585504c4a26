// A member of a group that copies the records of the topic "go-input" to "go-output" by franz-go,
// some at a time in a transaction with their offsets. Every fourth transaction is aborted, and its
// records are read again. It prints "COMMITTED n" with the number of records, and runs until its
// standard input ends.
//
// franz-go gives a producer up for good if the broker of its coordinator leaves the metadata before
// the client looks the coordinator up again ("unknown broker"). An application then goes on with a
// new session of the same transactional id. The program does so, too, and prints "AGAIN error".
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

func newSession() (*kgo.GroupTransactSession, error) {
	return kgo.NewGroupTransactSession(
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
}

// Copy one poll's records in a transaction, which is aborted if `aborts`.
func copyOnce(ctx context.Context, session *kgo.GroupTransactSession, aborts bool) error {
	fetches := session.PollRecords(ctx, 20)
	if ctx.Err() != nil || fetches.NumRecords() == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
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
	if committed && err == nil {
		fmt.Println("COMMITTED", fetches.NumRecords())
	}
	return err
}

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	number := 0
	for ctx.Err() == nil {
		session, err := newSession()
		if err != nil {
			fmt.Println("FAILED", err)
			os.Exit(1)
		}
		for err == nil && ctx.Err() == nil {
			number++
			err = copyOnce(ctx, session, number%4 == 0)
		}
		session.Close()
		if err != nil {
			fmt.Println("AGAIN", err)
		}
	}
	fmt.Println("CLOSED")
}
