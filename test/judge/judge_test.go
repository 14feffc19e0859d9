// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// run is what is asked for.
type run struct {
	seed  uint64
	count int
	// atOnce is how many connections are judged side by side.
	atOnce int
	// slack is what a close may come after the window, beside what timers were late.
	slack time.Duration
	// table is the file that the table goes to; "": to the test's log.
	table string
}

// perProcessor is how many connections a processor judges side by side in a run at length.
const perProcessor = 20

// runOf reads the variables. A small run is one of a test: its times are not judged.
func runOf(t *testing.T) run {
	t.Helper()
	r := run{seed: uint64(time.Now().UnixNano() % 1e6), count: 60, atOnce: 30, slack: late, table: os.Getenv(reportVar)}
	if testing.Short() {
		r.count, r.atOnce = len(scenarios()), 10
	}
	number := func(name string, to *uint64) {
		if s := os.Getenv(name); s != "" {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			*to = n
		}
	}
	number(seedVar, &r.seed)
	var count uint64
	if number(countVar, &count); count > 0 {
		r.count, r.atOnce, r.slack = int(count), perProcessor*runtime.NumCPU(), 50*time.Millisecond
		if os.Getenv("SOCKHEALTH_VM") != "" { // an emulated processor
			r.slack = 200 * time.Millisecond
		}
	}
	return r
}

// TestJudge: no live connection is closed, no dead one is left, and every verdict is
// one that is right.
func TestJudge(t *testing.T) {
	r := runOf(t)
	t.Logf("seed %d, %d connections", r.seed, r.count)
	b := newBed(t)
	by := newBystanders(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tl := &tally{run: r, began: conn.Now()}
	go tl.late.run(ctx)

	tl.plays = deal(rand.New(rand.NewPCG(r.seed, 0)), r.count)
	next := make(chan *outcome)
	var all sync.WaitGroup
	for range r.atOnce {
		all.Go(func() {
			for o := range next {
				b.judge(t, r.seed, o)
			}
		})
	}
	for i := range tl.plays {
		next <- &tl.plays[i]
	}
	close(next)
	all.Wait()
	for _, c := range crowds() {
		tl.plays = append(tl.plays, b.gather(t, r.seed, c, len(tl.plays))...)
	}
	cancel()
	tl.took = conn.Now() - tl.began
	tl.bystanders, tl.hurt = by.end()
	tl.complaints = b.agent.complaints()
	if testing.Short() { // the kernel of a slow machine may keep it waiting, to which it is right
		tl.complaints = slices.DeleteFunc(tl.complaints, func(line string) bool { return strings.Contains(line, "held up") })
	}
	tl.close(t)
	if _, failed := tl.result(); failed > 0 {
		t.Fail()
	}
	tl.publish(t)
}

// judge plays one.
func (b *bed) judge(t *testing.T, seed uint64, o *outcome) {
	t.Run(fmt.Sprintf("%d/%s/%s", o.number, o.scenario.name, o.variant), func(t *testing.T) {
		p := &play{
			TB: t, bed: b, Rand: rand.New(rand.NewPCG(seed, uint64(o.number)+1)),
			variant: o.variant, entry: o.scenario.entry, desk: b.desk, out: *o,
		}
		if p.entry == anyOf {
			p.entry = p.IntN(patient + 1)
		}
		p.server = b.Servers[p.IntN(len(b.Servers))]
		p.out.lives = o.scenario.lives
		defer func() {
			p.settle()
			*o = p.out
		}()
		o.scenario.play(p)
		if p.out.given != "" {
			p.recorded()
		}
	})
}

// settle takes down what has become of the connection, however the play ended.
func (p *play) settle() {
	p.out.failed = p.Failed()
	if p.out.failed && p.out.why == "" {
		p.out.why = "see the test's log"
	}
	if p.near == nil || !p.out.lives {
		return
	}
	if p.out.action == "closed" {
		select { // it may just be hearing of it
		case <-p.near.done:
		case <-time.After(time.Second):
		}
	}
	if err, _ := p.near.ended(); err != nil && err != io.EOF {
		p.out.strike, p.out.failed = true, true
		p.out.why = fmt.Sprintf("a live connection: its application got %v, verdict %s", err, p.out.given)
	}
}
