// SPDX-License-Identifier: Apache-2.0

package agent

import "testing"

func TestJournal(t *testing.T) {
	a := &Agent{}
	for range 3 {
		a.journal.add(Entry{})
	}
	all, cancel := a.Subscribe(0)
	some, cancelSome := a.Subscribe(2)
	defer cancelSome()
	a.journal.add(Entry{})
	for want := uint64(1); want <= 4; want++ {
		if e := <-all; e.Seq != want {
			t.Errorf("entry %d, want %d", e.Seq, want)
		}
	}
	if e := <-some; e.Seq != 3 {
		t.Errorf("entry %d first, want the one after 2", e.Seq)
	}
	cancel()
	cancel()
	if _, ok := <-all; ok {
		t.Error("an entry after cancel")
	}
}

// TestJournalLags: who does not read loses the oldest, is told so, and holds up
// nobody.
func TestJournalLags(t *testing.T) {
	a := &Agent{}
	slow, cancel := a.Subscribe(0)
	defer cancel()
	const n = 5 * journalSize
	for range n {
		a.journal.add(Entry{})
	}
	seen, last := 0, uint64(n-subscriberSize)
	for ; len(slow) > 0; seen++ {
		e := <-slow
		if e.Seq != last+1 {
			t.Errorf("entry %d after %d", e.Seq, last)
		}
		last = e.Seq
	}
	if seen != subscriberSize || last != n {
		t.Errorf("%d seen, the last one %d; want the last %d up to %d", seen, last, subscriberSize, n)
	}
	late, cancelLate := a.Subscribe(0)
	defer cancelLate()
	if e := <-late; e.Seq != n-journalSize+1 {
		t.Errorf("a late subscriber begins at %d, want %d", e.Seq, n-journalSize+1)
	}
	ahead, cancelAhead := a.Subscribe(n + 10)
	defer cancelAhead()
	if len(ahead) != 0 {
		t.Error("entries from the future")
	}
}
