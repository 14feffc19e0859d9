// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

// tally is what came of all plays.
type tally struct {
	run
	plays       []outcome
	began, took time.Duration
	late        lateness
	bystanders  int
	hurt        []error  // of bystanders
	complaints  []string // the agent's
}

// close weighs what only the whole run tells: how late timers were meanwhile.
func (t *tally) close(tb testing.TB) {
	tb.Helper()
	for i := range t.plays {
		o := &t.plays[i]
		if t.tardy(o) && !o.failed {
			o.failed = true
			o.why = fmt.Sprintf("closed %s after the window and what was waited for beside it, and %s is allowed", exact(o.beyond()), exact(t.allowed(o)))
			record, _ := json.Marshal(o.record) // words and numbers: cannot fail
			tb.Logf("%d, %s, closed %s after it was asked for; the record: %s", o.number, o.scenario.name, exact(o.at-o.asked), record)
		}
	}
}

// allowed is what a close may come after all that was waited for: the slack, and what late
// timers excuse.
func (t *tally) allowed(o *outcome) time.Duration {
	return t.slack + t.late.excused(o)
}

// tardy reports whether a connection was closed too late.
func (t *tally) tardy(o *outcome) bool {
	return o.closed && o.beyond() > t.slack && o.beyond() > t.allowed(o)
}

// result counts connections; a complaint of the agent counts as one that failed.
func (t *tally) result() (passed, failed int) {
	failed = len(t.hurt)
	for _, o := range t.plays {
		if o.failed {
			failed++
		}
	}
	return len(t.plays) + t.bystanders - failed, failed + len(t.complaints)
}

// publish writes the table to its file, or to the test's log.
func (t *tally) publish(tb testing.TB) {
	tb.Helper()
	text := t.String()
	if t.table == "" {
		tb.Logf("\n%s", text)
		return
	}
	if err := os.WriteFile(t.table, []byte(text), 0o600); err != nil {
		tb.Error(err)
	}
}

// String is the table, and what it amounts to.
func (t *tally) String() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SCENARIO\tOF\tWANTED\tGIVEN\tCLOSED\tDATA\tTO VERDICT\tTO CLOSE\tFAILED")
	for _, s := range scenarios() {
		t.row(w, s)
	}
	for _, c := range crowds() {
		t.row(w, c.scenario)
	}
	_ = w.Flush()
	t.words(&b)
	return b.String()
}

// row is a scenario's line.
func (t *tally) row(w *tabwriter.Writer, s scenario) {
	given := map[string]int{}
	var verdicts, closes []time.Duration
	var n, failed, due, arrived int
	for _, o := range t.plays {
		if o.scenario.name != s.name {
			continue
		}
		n++
		if o.failed {
			failed++
		}
		if o.given != "" {
			given[o.given]++
			verdicts = append(verdicts, o.answered-o.began)
		}
		if !o.dead && !o.reset {
			due++
		}
		if o.arrived {
			arrived++
		}
		if o.toClose > 0 {
			closes = append(closes, o.toClose)
		}
	}
	if n > 0 {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%d\t%s\t%s\t%s\t%d\n", s.name, n, s.want, counts(given), len(closes), parts(arrived, due),
			times(verdicts), times(closes), failed)
	}
}

// counts lists words, the most frequent first.
func counts(given map[string]int) string {
	words := slices.SortedFunc(maps.Keys(given), func(a, b string) int {
		return cmp.Or(cmp.Compare(given[b], given[a]), cmp.Compare(a, b))
	})
	for i, word := range words {
		words[i] = fmt.Sprintf("%d %s", given[word], word)
	}
	return strings.Join(words, ", ")
}

// parts is so many of those that ought to.
func parts(n, of int) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", n, of)
}

// times are the median and the 99th percentile.
func times(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	slices.Sort(all)
	return exact(quantile(all, 0.5)) + " " + exact(quantile(all, 0.99))
}

// exact is to the millisecond.
func exact(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

// words say what the table amounts to; the last line is the result.
func (t *tally) words(b *strings.Builder) {
	var struck, left, tardy int
	for i := range t.plays {
		o := &t.plays[i]
		if o.failed {
			fmt.Fprintf(b, "\nFAILED %d, %s, %s: %s", o.number, o.scenario.name, o.variant, o.why)
		}
		switch {
		case o.strike:
			struck++
		case o.dead && o.toClose == 0:
			left++
		case t.tardy(o):
			tardy++
		}
	}
	for _, err := range t.hurt {
		fmt.Fprintf(b, "\nFAILED bystander: %v", err)
	}
	for _, line := range t.complaints {
		fmt.Fprintf(b, "\nFAILED agent: %s", line)
	}
	passed, failed := t.result()
	fmt.Fprintf(b, `
%d connections were judged in %s, %d side by side, and %d beside them were not; seed %d.
Times are median and 99th percentile, from the report on. DATA: of the connections that
live, those on which all that was said arrived. A live connection that was closed: %d. A
dead one that was left: %d, or closed too late: %d.
%s
An outage is over in time where its path was well before the last attempt was due: the
connection must live. Where it was silent until the verdict it must be closed. In between,
while the last attempt is waited for, either verdict is right, if what was done fits it.

%d passed, %d failed
`, len(t.plays), t.took.Round(time.Second), t.atOnce, t.bystanders, t.seed, struck+len(t.hurt), left, tardy,
		t.closes(), passed, failed)
}
