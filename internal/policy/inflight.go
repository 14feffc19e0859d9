// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// InFlight says what bounds data in flight.
type InFlight uint8

// The ways.
const (
	// ByUserTimeout is TCP_USER_TIMEOUT.
	ByUserTimeout InFlight = iota
	// ByRTOCap is a limit of the retransmission timeout, so that the kernel's own
	// number of retransmissions (net.ipv4.tcp_retries2) comes to the user timeout.
	ByRTOCap
	// Auto is ByRTOCap where the kernel and the user timeout allow it.
	Auto
)

const (
	// minCapped is the least user timeout that ByRTOCap can keep: the limit is at
	// least a second, and 15 retransmissions take 14.4 s then.
	minCapped = 15 * time.Second
	// maxCapped is the largest: 15 retransmissions at most maxCap apart take 254.9 s.
	maxCapped = 255 * time.Second
	// capStep is the unit of the limit, maxCap its largest (sh_options in bpf/sockhealth.h).
	capStep, minCap, maxCap = 100 * time.Millisecond, time.Second, 255 * capStep
	// defaultRetries2 is the kernel's net.ipv4.tcp_retries2.
	defaultRetries2 = 15
)

// Ground is what figures stand on beside the policy.
type Ground struct {
	// RTOCap says that the kernel has TCP_RTO_MAX_MS (Linux 6.15).
	RTOCap bool
	// Retries2 is net.ipv4.tcp_retries2 of the namespace, 0: not known, the kernel's
	// default of 15.
	Retries2 int
}

func (g Ground) retries2() int {
	if g.Retries2 == 0 {
		return defaultRetries2
	}
	return g.Retries2
}

// Capped reports whether a limit of the retransmission timeout stands in for the user
// timeout, where the kernel can.
func (p *Peer) Capped(kernelCan bool) bool {
	o := &p.Options
	return kernelCan && p.InFlight != ByUserTimeout &&
		o.UserTimeout >= minCapped && o.UserTimeout <= longestCapped(o.Idle, o.Interval)
}

// longestCapped is the longest user timeout that a limit of the retransmission timeout
// can stand in for, and without a user timeout the keepalive count.
func longestCapped(idle, interval time.Duration) time.Duration {
	return min(maxCapped, idle+maxCount*interval)
}

// Wanted are the options as the programs are told them. With RTOMax set the user
// timeout is not set, and stands there to be compared with the application's: the
// kernel heeds the keepalive count then, which is what fits into the user timeout.
func (p *Peer) Wanted(kernelCan bool) conn.Options {
	o := p.Options
	if p.Capped(kernelCan) {
		o.RTOMax = rtoMax(o.UserTimeout)
		o.Count = max(o.Count, int((o.UserTimeout-o.Idle)/o.Interval)) // maxCount at most, by Capped
	}
	return o
}

// rtoMax is the largest limit with which 15 retransmissions take no longer than the
// user timeout.
func rtoMax(userTimeout time.Duration) time.Duration {
	limit := minCap
	for next := limit + capStep; next <= maxCap && retransmitting(defaultRetries2, next) <= userTimeout; next += capStep {
		limit = next
	}
	return limit
}

// retransmitting is how long after the first retransmission the kernel gives up: the
// time that so many take from the least timeout on, each twice the last, up to the
// limit (tcp_model_timeout). It does not depend on the connection's own timeout.
func retransmitting(retries2 int, limit time.Duration) time.Duration {
	doublings := bits.Len64(uint64(limit/rtoMin)) - 1
	if retries2 <= doublings {
		return (2<<retries2 - 1) * rtoMin
	}
	return (2<<doublings-1)*rtoMin + time.Duration(retries2-doublings)*limit
}

// cap fills in what bounds data in flight, and connections with none, without a user
// timeout.
func (f *Figures) cap(o *conn.Options, retries2 int) {
	givesUp := retransmitting(retries2, o.RTOMax)
	last, end := rtoMin, rtoMin
	for gap := rtoMin; end-rtoMin < givesUp; {
		gap = min(2*gap, o.RTOMax)
		if end += gap; late(end-rtoMin) < givesUp {
			last = end
		}
	}
	f.InFlightBound, f.InFlightBoundLatest = end, late(end+rtoMin)
	f.SurvivesInFlightNear = last
	// For any round trip: the next retransmission, at most a limit later, is not sure.
	f.SurvivesInFlight = max(givesUp*8/9-o.RTOMax, 0)
	f.IdleBound = o.Idle + time.Duration(o.Count)*o.Interval
	f.IdleBoundLatest = late(f.IdleBound)
	f.LostProbes = o.Count - 1
	f.SurvivesIdle = time.Duration(f.LostProbes) * o.Interval
	f.SurvivesIdleFresh = o.Idle + f.SurvivesIdle
}

// inFlight says in words what bounds data in flight, "" where it is the user timeout
// because the file says so.
func (p *Peer) inFlight(g Ground) string {
	word := map[InFlight]string{ByRTOCap: "rto_cap", Auto: "auto"}[p.InFlight]
	switch {
	case p.InFlight == ByUserTimeout:
		return ""
	case p.Options.UserTimeout < minCapped:
		return fmt.Sprintf("%s: user_timeout, since rto_cap needs one of %s or more", word, short(minCapped))
	case p.Options.UserTimeout > longestCapped(p.Options.Idle, p.Options.Interval):
		return fmt.Sprintf("%s: user_timeout, since rto_cap needs one of %s or less with this keepalive", word, short(longestCapped(p.Options.Idle, p.Options.Interval)))
	case !g.RTOCap:
		return word + ": user_timeout, since this kernel has no TCP_RTO_MAX_MS (Linux 6.15)"
	}
	whose := "of this network namespace"
	if g.Retries2 == 0 {
		whose = "assumed"
	}
	return fmt.Sprintf("%s: %d retransmissions (net.ipv4.tcp_retries2, %s), at most %s apart",
		word, g.retries2(), whose, most(p.Wanted(true).RTOMax))
}

// Uncapped names the peers whose entry asks for rto_cap, which a kernel without
// TCP_RTO_MAX_MS cannot give.
func (p *Policy) Uncapped() (names []string) {
	for i := range p.Peers {
		if p.Peers[i].InFlight == ByRTOCap {
			names = append(names, p.Peers[i].Name)
		}
	}
	return names
}
