// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"math/rand/v2"
	"slices"

	"github.com/sockhealth/sockhealth/internal/lab"
)

// scenario is a kind of trouble.
type scenario struct {
	name string
	// want is the verdict, and what becomes of the connection, for the table. What
	// is demanded stands in play.
	want string
	// entry of the policy that the connection falls under; anyOf: a random one.
	entry int
	// only are the variants that make sense; nil: all.
	only func(variant) bool
	// lives says that the connection is well, whatever the verdict: an error of its
	// application is a live connection closed.
	lives bool
	play  func(*play)
}

// scenarios lists all, by group.
func scenarios() []scenario {
	return slices.Concat(deadOnes(), liveOnes(), halves(), windows(), applications(), losses(), outages(), locals(), unreported())
}

// deal draws n plays: all scenarios in turn, and of each all its variants in turn,
// in random order. Without IPv6 there is IPv4 alone.
func deal(r *rand.Rand, n int) []outcome {
	all := scenarios()
	decks := make([][]variant, len(all))
	for i := range all {
		for _, v := range variants() {
			if (all[i].only == nil || all[i].only(v)) && (lab.IPv6() || v.family == ipv4) {
				decks[i] = append(decks[i], v)
			}
		}
		r.Shuffle(len(decks[i]), func(a, b int) { decks[i][a], decks[i][b] = decks[i][b], decks[i][a] })
	}
	plays := make([]outcome, n)
	for k, order := 0, r.Perm(len(all)); k < n; k++ {
		i := order[k%len(all)]
		plays[k] = outcome{number: k, scenario: &all[i], variant: decks[i][k/len(all)%len(decks[i])]}
	}
	return plays
}
