// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// closes says how late closes came, by what each had to wait for.
func (t *tally) closes() string {
	var all, plain, excused []time.Duration
	var most [reasons][]time.Duration
	var names [reasons][]string
	latest, needed := time.Duration(0), 0
	for i := range t.plays {
		o := &t.plays[i]
		if !o.closed {
			continue
		}
		all = append(all, o.over)
		latest = max(latest, o.beyond())
		if len(o.besides) == 0 {
			plain = append(plain, o.over)
		}
		for _, b := range o.besides {
			most[b.reason] = append(most[b.reason], b.took)
			if !slices.Contains(names[b.reason], o.scenario.name) {
				names[b.reason] = append(names[b.reason], o.scenario.name)
			}
		}
		excused = append(excused, t.late.excused(o))
		if o.beyond() > t.slack {
			needed++
		}
	}
	for _, one := range [][]time.Duration{all, plain, excused} {
		slices.Sort(one)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
The agent closed %d, the latest %s after call timeout and window. %d of them had nothing
else to wait for: these came %s after that at most, and %s are allowed.
`, len(all), exact(quantile(all, 1)), len(plain), exact(quantile(plain, 1)), exact(t.slack))
	if len(plain) < len(all) {
		fmt.Fprintf(&b, "The others' records show what they waited for besides (median, 99th percentile); all came\n%s after that, too, at most:\n", exact(latest))
	}
	for r, took := range most {
		if len(took) > 0 {
			fmt.Fprintf(&b, "%4d for %s, %s: %s\n", len(took), reason(r), times(took), strings.Join(names[r], ", "))
		}
	}
	worst, usual := t.late.of()
	fmt.Fprintf(&b, `This machine's timers were late, by %s at worst, 99 of 100 by %s. What of that a close
could not but wait for is allowed, too: %s as the median, for 99 of 100 %s at most, %s
at worst. %d closes needed any of it.
`, exact(worst), exact(usual), exact(quantile(excused, 0.5)), exact(quantile(excused, 0.99)), exact(quantile(excused, 1)), needed)
	return b.String()
}
