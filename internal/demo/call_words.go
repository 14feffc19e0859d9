// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strings"
)

// measured puts into words what happened.
func (c *callCase) measured(rec callRecord) string {
	said := []string{reportsInWords(rec.reports)}
	for _, step := range c.calls {
		said = append(said, callInWords(step.name, rec.request(step.name)))
	}
	for _, ch := range c.channels {
		if ch.name != c.channels[0].name || len(c.calls) == 0 {
			said = append(said, channelInWords(ch.name, rec))
		}
	}
	for i, t := range c.tallies {
		if i < len(rec.counts) {
			said = append(said, fmt.Sprintf("%d %s", rec.counts[i], t.what.inWords(rec.counts[i])))
		}
	}
	return strings.Join(slices.Compact(said), ", ")
}

// inWords names n of them.
func (p packets) inWords(n int) string {
	if n == 1 {
		return strings.TrimSuffix(p.String(), "s")
	}
	return p.String()
}

// reportsInWords is what the agent said, once where it said the same to all.
func reportsInWords(reports []Report) string {
	if len(reports) == 0 {
		return "no report"
	}
	var all []string
	for _, r := range reports {
		all = append(all, r.inWords())
	}
	if one := slices.Compact(slices.Clone(all)); len(one) == 1 && len(all) > 1 {
		return fmt.Sprintf("%d x %s", len(all), one[0])
	}
	return strings.Join(all, ", ")
}

// inWords is what the agent answered.
func (r *Report) inWords() string {
	switch {
	case r.Took < 0:
		return "report not answered"
	case r.Err != "":
		return "report refused"
	case len(r.Results) == 0:
		return "nothing to judge"
	}
	var all []string
	for _, res := range r.Results {
		text := res.Verdict
		if app := res.Evidence.AppProbe; app != "" {
			text += fmt.Sprintf(" (app: %s)", app)
		}
		if res.Action == "none" {
			text += ": kept"
		} else {
			text += ": " + res.Action
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// callInWords is what became of a call, by its moment.
func callInWords(name string, r *Request) string {
	switch {
	case r == nil:
		return name + " not sent"
	case r.hanging():
		return name + " hangs"
	case r.answered():
		return "answer at " + seconds(r.Sent+r.Took)
	case r.Err == callRefusal:
		return "error at " + seconds(r.Sent+r.Took)
	}
	return fmt.Sprintf("%s at %s", r.Err, seconds(r.Sent+r.Took))
}

// channelInWords says whether a channel that nobody waited on is there.
func channelInWords(name string, rec callRecord) string {
	switch r := rec.request(again(name)); {
	case !rec.kept[name]:
		return name + " gone"
	case r == nil || !r.answered():
		return name + " does not answer"
	}
	return name + " answers"
}
