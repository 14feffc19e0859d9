// SPDX-License-Identifier: Apache-2.0

package demo

import "time"

// The pool incident: a client holds pooled keep-alive HTTP connections to a
// peer and works one request after the other. All traffic to the peer is
// dropped and its name is pointed at a replacement.
const (
	poolName     = "pool"
	poolConns    = 4
	poolWatch    = 75 * time.Second
	poolPatience = 30 * time.Second // the client's wait for an answer
	poolPause    = 5 * time.Second  // from the outcome to the next request
	poolPort     = 7100
)

// bound is what a client that bounds its connections itself sets on each.
type bound struct {
	idle, interval time.Duration
	count          int
	userTimeout    time.Duration
}

// poolVariant is one run of the pool incident.
type poolVariant struct {
	name     string
	incident string        // what happened then
	first    time.Duration // first request after the fault
	patience time.Duration
	bound    *bound // set by the client itself
	agent    bool   // sockhealth stands beside the client
	reports  bool   // and the client reports its timeouts to it
	want     poolWant
}

// poolWant is what has to happen in a run.
type poolWant struct {
	// allFail: every request fails, after the client's patience.
	allFail bool
	// failAfter is how long after its sending the first request fails, 0 where
	// none fails. All after it are answered.
	failAfter time.Duration
	// goneBefore is the index of the request that was sent only after all
	// stale connections were gone; negative: not asked.
	goneBefore int
}

// poolVariants are the five of the incident; the fourth has two runs.
func poolVariants() []poolVariant {
	const ut = 15 * time.Second // the policy's default user timeout
	return []poolVariant{
		{
			name: "no agent", first: 3 * time.Second, patience: poolPatience,
			incident: "every request fails after 30 s, for 75 s",
			want:     poolWant{allFail: true, goneBefore: -1},
		},
		{
			name: "20 s bound", first: 3 * time.Second, patience: poolPatience,
			incident: "1 failure at 20.5 s, all well from 28.5 s",
			bound:    &bound{idle: 5 * time.Second, interval: 5 * time.Second, count: 3, userTimeout: 20 * time.Second},
			want:     poolWant{failAfter: 20 * time.Second, goneBefore: -1},
		},
		{
			name: "15 s bound", first: 16 * time.Second, patience: poolPatience,
			incident: "all 4 already gone, every request succeeds",
			bound:    &bound{idle: 5 * time.Second, interval: 2 * time.Second, count: 5, userTimeout: ut},
			want:     poolWant{goneBefore: 0},
		},
		{
			name: "sockhealth, bound only", first: 3 * time.Second, patience: poolPatience,
			incident: "1 failure at the bound (15 s), then all well",
			agent:    true,
			want:     poolWant{failAfter: ut, goneBefore: 1},
		},
		{
			name: "sockhealth, bound only", first: 16 * time.Second, patience: poolPatience,
			incident: "no failure at all",
			agent:    true,
			want:     poolWant{goneBefore: 0},
		},
		{
			name: "sockhealth with reports", first: 3 * time.Second, patience: 2 * time.Second,
			incident: "1 failure at 2 s, all 4 gone before the next",
			agent:    true, reports: true,
			want: poolWant{failAfter: 2 * time.Second, goneBefore: 1},
		},
	}
}
