// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sockhealth/sockhealth/internal/container"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/verdict"
)

// Entries returns those kept after the one numbered since.
func Entries(a *Agent, since uint64) (out []Entry) {
	for {
		e, _, _ := a.After(since)
		if e.Seq <= since { // 0: none
			return out
		}
		out, since = append(out, e), e.Seq
	}
}

// follow calls fn with each entry, until stop.
func follow(a *Agent, fn func(*Entry)) (stop func()) {
	ended := make(chan struct{})
	go func() {
		for since := uint64(0); ; {
			e, _, more := a.After(since)
			if e.Seq > since {
				since = e.Seq
				fn(&e)
				continue
			}
			select {
			case <-more:
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended) }
}

func numbers(a *Agent, since uint64) (out []uint64) {
	for _, e := range Entries(a, since) {
		out = append(out, e.Seq)
	}
	return out
}

func acted(action Action) Entry { return Entry{Result: &Result{Action: action}} }

func TestJournal(t *testing.T) {
	a := &Agent{}
	_, last, more := a.After(0)
	if last != 0 {
		t.Errorf("the newest of none is %d", last)
	}
	a.journal.add(Entry{})
	select {
	case <-more:
	default:
		t.Error("who waits is not woken")
	}
	a.journal.add(acted(ActionClosed))
	a.journal.add(acted(ActionNone))
	for since, want := range [][]uint64{{1, 2, 3}, {2, 3}, {3}, nil, nil} {
		if got := numbers(a, uint64(since)); !slices.Equal(got, want) {
			t.Errorf("after %d come %d, want %d", since, got, want)
		}
	}
	_, last, more = a.After(3)
	select {
	case <-more:
		t.Error("woken by nothing")
	default:
	}
	if last != 3 {
		t.Errorf("the newest is %d, want 3", last)
	}
}

// TestJournalKeeps: the oldest go first, and the verdicts that something was done
// about not before as many of their kind came.
func TestJournalKeeps(t *testing.T) {
	a := &Agent{}
	a.journal.add(acted(ActionClosed))
	a.journal.add(acted(ActionObserved))
	const n = 3*JournalSize + 17
	for range n {
		a.journal.add(acted(ActionNone))
	}
	want := []uint64{1, 2}
	for seq := uint64(n + 2 - JournalSize + 1); seq <= n+2; seq++ {
		want = append(want, seq)
	}
	if got := numbers(a, 0); !slices.Equal(got, want) {
		t.Errorf("kept %d, from %d on", len(got), got[:3])
	}
	if got := numbers(a, n); !slices.Equal(got, []uint64{n + 1, n + 2}) {
		t.Errorf("after %d come %d", n, got)
	}
	for range JournalSize {
		a.journal.add(acted(ActionFailed))
	}
	if got := numbers(a, 0); len(got) != 2*JournalSize || got[0] != want[2] {
		t.Errorf("kept %d, from %d on", len(got), got[0])
	}
}

// TestJournalMemory: full of the largest records there are, the journal takes a few
// megabytes, however many read it.
func TestJournalMemory(t *testing.T) {
	const limit = 10 << 20
	a := &Agent{}
	before := heap()
	for i := range 3 * JournalSize {
		var all attempts
		for range 2 * maxAttempts {
			all.note(0, probeSegment, attemptSent)
		}
		in := verdict.Input{Before: verdict.Look{Found: true}, Probe: verdict.Probe{Done: true}, After: verdict.Look{Found: true}}
		where := container.ID{Container: strings.Repeat("c", 64), Pod: fmt.Sprintf("%036d", i)}
		action := []Action{ActionNone, ActionClosed}[i%2]
		a.journal.add(Entry{Container: where, Result: &Result{Action: action, Basis: in.Basis(0), Attempts: all.told(0)}})
		a.After(0) // a reader that has not got on since
	}
	if took := heap() - before; took > limit || took < JournalSize {
		t.Errorf("%d entries take %d bytes, want at most %d", 2*JournalSize, took, limit)
	} else {
		t.Logf("%d entries take %d bytes", 2*JournalSize, took)
	}
	runtime.KeepAlive(a)
}

// heap returns what is in use after everything else was freed.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What happened before the agent ran has its own time.
func TestEndTime(t *testing.T) {
	bubble(t, "an end that is told late", func(t *testing.T, w *world, a *Agent) {
		id := w.add(1, 10*time.Second, nil)
		time.Sleep(time.Minute)
		now := time.Now()
		a.logEnd(&loader.Event{ID: id, Time: a.Now() - 26*time.Second}, "")
		a.logEnd(&loader.Event{ID: id, Time: a.Now() + time.Second}, "") // clocks are read one after the other
		e, _, _ := a.After(0)
		if !e.Time.Equal(now.Add(-26*time.Second)) || !e.Noted.Equal(now) {
			t.Errorf("happened %v, noted %v; now is %v", e.Time, e.Noted, now)
		}
		if e, _, _ = a.After(e.Seq); !e.Time.Equal(now) {
			t.Errorf("happened at %v, now is %v", e.Time, now)
		}
	})
}
