// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteTable writes the result for people: each incident's rows with the
// incident's own figures beside what was measured here, and below them every
// figure that did not hold. The error is w's.
func WriteTable(w io.Writer, r *Result) error {
	var errs []error
	for n, i := range r.Incidents {
		if n > 0 {
			_, err := io.WriteString(w, "\n")
			errs = append(errs, err)
		}
		errs = append(errs, i.write(w))
	}
	return errors.Join(errs...)
}

func (i *Incident) write(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	cells := []string{i.Title}
	if i.hasMoments() {
		cells = append(cells, "request at")
	}
	cells = append(cells, i.Asked, "here")
	fmt.Fprintln(t, strings.ToUpper(strings.Join(cells, "\t")))
	for _, r := range i.Rows {
		cells := append(r.head(), r.Required, r.Measured, verdictOf(r.Held()))
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err // cannot be: b takes everything
	}
	fmt.Fprintf(&b, "\n%s Timers fire late, never\n"+
		"early: a time may not fall short of its figure, and may exceed it by up to %.1f s and what\n"+
		"the timers of that run were late at worst, here %.2f s.\n", i.Times, Slack.Seconds(), i.late().Seconds())
	b.WriteString("\n" + i.closing() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// hasMoments reports whether the rows tell when the first request was due.
func (i *Incident) hasMoments() bool { return len(i.Rows) > 0 && i.Rows[0].Pool != nil }

// head is the row's name in one cell or two.
func (r *Row) head() []string {
	if r.Pool == nil {
		return []string{r.Case}
	}
	return []string{r.Case, fmt.Sprintf("%.0f s", r.Pool.First.Seconds())}
}

// late is the worst of all rows.
func (i *Incident) late() time.Duration {
	worst := time.Duration(0)
	for _, r := range i.Rows {
		worst = max(worst, r.Late)
	}
	return worst
}

// closing is the last sentence, or the list of what did not hold.
func (i *Incident) closing() string {
	if i.Held() {
		return i.Lesson
	}
	var broken []string
	for _, r := range i.Rows {
		for _, f := range r.Figures {
			if !f.Held() {
				broken = append(broken, fmt.Sprintf("  %s: %s", strings.Join(r.head(), ", request at "), f))
			}
		}
	}
	return "NOT HELD:\n" + strings.Join(broken, "\n")
}

func verdictOf(held bool) string {
	if held {
		return "held"
	}
	return "NOT HELD"
}
