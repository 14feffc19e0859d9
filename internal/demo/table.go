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
	for _, i := range r.Incidents {
		errs = append(errs, i.write(w))
	}
	return errors.Join(errs...)
}

func (i *Incident) write(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%s\tREQUEST AT\tIN THE INCIDENT\tHERE\n", strings.ToUpper(i.Title))
	for _, r := range i.Rows {
		fmt.Fprintf(t, "%s\t%.0f s\t%s\t%s\t%s\n", r.Run, r.First.Seconds(), r.Incident, r.Measured, verdictOf(r.Held()))
	}
	if err := t.Flush(); err != nil {
		return err // cannot be: b takes everything
	}
	fmt.Fprintf(&b, "\nTimes count from the drop, those of a failure from its sending. Timers fire late, never\n"+
		"early: a time may not fall short of its figure, and may exceed it by up to %.1f s and what\n"+
		"the timers of that run were late at worst, here %.2f s.\n", Slack.Seconds(), i.late().Seconds())
	b.WriteString("\n" + i.closing() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
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
				broken = append(broken, fmt.Sprintf("  %s, request at %.0f s: %s", r.Run, r.First.Seconds(), f))
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
