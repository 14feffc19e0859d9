// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestConnected: peers were heard so many seconds ago, and a connection has been
// asked in vain for three.
func TestConnected(t *testing.T) {
	const now, asked = time.Hour, 3 * time.Second
	many := func(n int, rest ...float64) []float64 {
		for range n {
			rest = append(rest, 3.5)
		}
		return rest
	}
	for _, test := range []struct {
		name   string
		ages   []float64
		least  int
		cutOff bool
	}{
		{"nobody", nil, 5, false},
		{"one peer, silent", many(1), 5, false},
		{"four, all silent", many(4), 5, false},
		{"five, all silent", many(5), 5, true},
		{"five, one heard: four fifths are silent", many(4, 1), 5, true},
		{"five, two heard", many(3, 1, 2.9), 5, false},
		{"six, all silent", many(6), 5, true},
		{"six, one heard", many(5, 0), 5, true},
		{"six, one silent", many(1, 0, 0.1, 0.2, 2, 2.5), 5, false},
		{"six, a rack of four is silent", many(4, 1, 1), 5, false},
		{"ten, two heard: four fifths are silent", many(8, 1, 1), 5, true},
		{"ten, three heard", many(7, 1, 1, 1), 5, false},
		{"a hundred, all but one heard", append(many(1), make([]float64, 99)...), 5, false},
		{"a hundred, twenty heard", append(many(80), make([]float64, 20)...), 5, true},
		{"a hundred, twenty-one heard", append(many(79), make([]float64, 21)...), 5, false},
		{"heard at the moment that the asking began", many(3, 3, 3), 5, false},
		{"a frozen node, one peer left, silent", many(1), 1, true},
		{"a frozen node, one peer left, heard", []float64{0.5}, 1, false},
		{"a frozen node without connections", nil, 1, false},
	} {
		heard := make([]time.Duration, len(test.ages))
		for i, age := range test.ages {
			heard[i] = now - time.Duration(age*float64(time.Second))
		}
		rand.Shuffle(len(heard), func(i, j int) { heard[i], heard[j] = heard[j], heard[i] })
		first := append([]time.Duration(nil), heard...)
		if got := Connected(heard, test.least, now) < now-asked; got != test.cutOff {
			t.Errorf("%s: cut off %v, want %v", test.name, got, test.cutOff)
		}
		for i := range heard {
			if heard[i] != first[i] {
				t.Fatalf("%s: the caller's list was changed", test.name)
			}
		}
	}
}
