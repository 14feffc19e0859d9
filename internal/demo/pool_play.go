// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"golang.org/x/sync/errgroup"
)

// lookEvery is how often the kernel is asked for the stale connections.
const lookEvery = 100 * time.Millisecond

const poolHead = `The pool incident, %d times side by side, each in network namespaces of its own.
A client holds %d pooled keep-alive HTTP connections to a peer and works one request
after the other: send, wait up to 30 s for the answer, pause 5 s. Now all traffic to
the peer is dropped, and its name is pointed at a replacement. Watching for %.0f s.
`

// playPool plays the incident and judges it. It closes struck when the bed is
// set up and the fault made.
func playPool(ctx context.Context, s *stage, out io.Writer, struck chan<- struct{}) (_ *Incident, err error) {
	var runs []*poolRun
	for i, v := range poolVariants() {
		runs = append(runs, newPoolRun(s, i, v))
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			tellSaid(out, suspects(bedsOf(runs)))
		}
		err = errors.Join(err, closeAll(bedsOf(runs)))
	}()
	setUp, setUpCtx := errgroup.WithContext(ctx)
	for _, r := range runs {
		setUp.Go(func() error { return r.setUp(setUpCtx) })
	}
	if err := setUp.Wait(); err != nil {
		return nil, err
	}
	for _, r := range runs {
		if err := r.strike(); err != nil {
			return nil, err
		}
	}
	close(struck)
	if err := watchPool(ctx, runs, newProgress(out)); err != nil {
		return nil, err
	}
	incident := newPoolIncident()
	var failed []*bed
	for _, r := range runs {
		row := r.judge(r.record())
		if !row.Held() {
			failed = append(failed, &r.bed)
		}
		incident.Rows = append(incident.Rows, row)
	}
	tellSaid(out, failed)
	return incident, nil
}

// tellPool says what is about to be played.
func tellPool(out io.Writer) {
	fmt.Fprintf(out, poolHead, len(poolVariants()), poolConns, poolWatch.Seconds())
}

func newPoolIncident() *Incident {
	return &Incident{
		Name: poolName, Title: "The pool", Asked: "in the incident", Watched: poolWatch,
		Times: "Times count from the drop, those of a failure from its sending.",
		Lesson: `Every figure holds. Beside a client that knows nothing of it, sockhealth held the
incident to one failed call, and ended it at the bound. With timeout reports that
call failed after 2 s, and no second one met a dead connection.`,
	}
}

// watchPool looks at the runs until each was watched for its time.
func watchPool(ctx context.Context, runs []*poolRun, p *progress) error {
	defer p.end()
	last := runs[len(runs)-1].fault
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		for _, r := range runs {
			if err := errors.Join(r.died(), r.look()); err != nil {
				return err
			}
		}
		elapsed := conn.Now() - last
		p.show(elapsed, func() string { return poolStatus(elapsed, runs) })
		if elapsed > poolWatch {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// poolStatus is the line that is shown meanwhile.
func poolStatus(elapsed time.Duration, runs []*poolRun) string {
	var stale, hanging, failed, answered int
	for _, r := range runs {
		rec := r.record()
		stale += rec.stale
		hanging += count(rec.requests, (*Request).hanging)
		failed += count(rec.requests, (*Request).failed)
		answered += count(rec.requests, (*Request).answered)
	}
	return fmt.Sprintf("%2.0f s of %.0f s  requests: %d hanging, %d failed, %d answered; stale connections: %d of %d",
		min(elapsed, poolWatch).Truncate(time.Second).Seconds(), poolWatch.Seconds(),
		hanging, failed, answered, stale, len(runs)*poolConns)
}

func bedsOf(runs []*poolRun) []*bed {
	var beds []*bed
	for _, r := range runs {
		beds = append(beds, &r.bed)
	}
	return beds
}
