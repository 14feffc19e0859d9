// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

// Figures say what a peer's values amount to on the wire. They hold for
// connections that have had the values since they opened and keep them.
//
// A kernel timer never fires early, but up to an eighth of its time late: the
// timer wheel gets coarser with distance. Every figure that promises survival
// is reckoned with the latest timers, every bound is given for timers on time
// and for the latest.
type Figures struct {
	// IdleBound is how long after the last packet from a dead peer a
	// connection with nothing in flight ends; never before the user timeout.
	IdleBound, IdleBoundLatest time.Duration
	// InFlightBound is how long after the first send of data that a dead peer
	// does not acknowledge the connection ends, for round trips that are short
	// beside 200 ms. A longer retransmission timeout comes on top.
	InFlightBound, InFlightBoundLatest time.Duration
	// LostProbes is how many keepalives in a row may be lost on a path that is
	// then well again.
	LostProbes int
	// SurvivesIdle: an outage shorter than this ends no connection that has
	// nothing in flight, whenever it begins. Up to SurvivesIdleFresh it ends
	// none whose last packet came right before the outage. Both are less by a
	// round trip.
	SurvivesIdle, SurvivesIdleFresh time.Duration
	// SurvivesInFlight: an outage shorter than this ends no connection with
	// data in flight, whatever its round trip. SurvivesInFlightNear is the same
	// for a retransmission timeout of 200 ms, the least, which round trips of
	// a few milliseconds have. Both are less by a round trip.
	SurvivesInFlight, SurvivesInFlightNear time.Duration
	// ReportBound is how long after a timeout report a dead connection is
	// condemned. Slow paths take longer: four round trips plus 500 ms.
	ReportBound time.Duration
	// SurvivesReport: a reported connection is kept where the path is well
	// again this long after the report, however long it was down before
	// (within the bounds above).
	SurvivesReport time.Duration
	// SilenceBound is how long after a request that a dead peer does not answer the
	// connection is condemned without a report; 0: it is not watched. SilenceLater
	// is the same after the last packet of a peer that dies while a request is out
	// that is as old as the silence
	// (the kernel's bounds may end it sooner). Both are
	// those of the first judgement: after one that found the peer alive the next
	// comes when the request is twice as old.
	SilenceBound, SilenceLater time.Duration
}

// rtoMin is the least first retransmission timeout (TCP_RTO_MIN).
const rtoMin = 200 * time.Millisecond

// late is when a timer that is due after d has fired at the latest.
func late(d time.Duration) time.Duration { return d + d/8 }

// Figures reckons the peer's values where the kernel has no TCP_RTO_MAX_MS.
func (p *Peer) Figures() Figures { return p.FiguresOn(Ground{}) }

// FiguresOn reckons them on this ground. Without a user timeout, and with a limit of
// the retransmission timeout, they are those of such a connection.
func (p *Peer) FiguresOn(g Ground) Figures {
	o := p.Wanted(g.RTOCap)
	f := p.figures(o)
	if o.RTOMax > 0 && (o.UserTimeout == 0 || p.Capped(g.RTOCap)) {
		f.cap(&o, g.retries2())
	}
	return f
}

// figures reckons them as if the user timeout were set.
func (p *Peer) figures(o conn.Options) Figures {
	lost := lostProbes(o.UserTimeout, o.Idle, o.Interval)
	idle := idleBound(o.UserTimeout, o.Idle, o.Interval)
	window, spacing := p.Probe.Schedule(0)
	f := Figures{
		IdleBound:       idle,
		IdleBoundLatest: late(idle),
		InFlightBound:   o.UserTimeout + rtoMin,
		// A tail loss probe may put off the first retransmission timeout by
		// as much again.
		InFlightBoundLatest:  late(o.UserTimeout + 2*rtoMin),
		LostProbes:           lost,
		SurvivesIdle:         time.Duration(lost) * o.Interval,
		SurvivesIdleFresh:    o.Idle + time.Duration(lost)*o.Interval,
		SurvivesInFlight:     o.UserTimeout * 4 / 9,
		SurvivesInFlightNear: lastRetransmission(o.UserTimeout, rtoMin),
		ReportBound:          window,
		SurvivesReport:       time.Duration(p.Probe.Attempts-1) * spacing,
	}
	if p.Silence > 0 {
		f.SilenceBound = p.Silence + p.SilencePass() + window
		f.SilenceLater = min(p.Silence, late(o.Idle)+silenceGrace) + p.SilencePass() + window
	}
	return f
}

const (
	// silenceGrace is what a keepalive that is due has to be sent and answered
	// before the silence watch takes it for unanswered (unheard_ms in the program).
	silenceGrace = time.Second
	// The watch passes over the connections so often that a pass adds little to the
	// silence, and no more often than is needed.
	minSilencePass, maxSilencePass = 250 * time.Millisecond, 5 * time.Second
)

// SilencePass is the longest time between two passes of the silence watch, 0 where
// the peer is not watched. (Where connections are so many that a pass takes long, it
// is longer: see package silence.)
func (p *Peer) SilencePass() time.Duration {
	if p.Silence == 0 {
		return 0
	}
	return min(max(p.Silence/4, minSilencePass), maxSilencePass)
}

// idleBound: the keepalive timer fires idle after the last packet and then
// every interval. Each time it first ends the connection where at least one
// probe is unanswered and the last packet is as old as the user timeout, and
// sends a probe otherwise; the keepalive count does not matter beside a user
// timeout (tcp_keepalive_timer, kernel-facts T2, T6). So the end comes with the
// first firing after the first probe that is not before the user timeout.
func idleBound(userTimeout, idle, interval time.Duration) time.Duration {
	beyond := max(userTimeout-idle, 1)
	steps := (beyond + interval - 1) / interval
	return idle + steps*interval
}

// lostProbes: k lost probes are survived where the next one, due at
// idle + k x interval, is sent before the user timeout has passed
// (kernel-facts T7), also when its timer is late.
//
// It follows that no outage shorter than k x interval hurts: k+1 probes in a
// row span at least that, so that it swallows at most k of them. An outage that
// begins right after a packet has the whole idle time before the first probe
// besides.
func lostProbes(userTimeout, idle, interval time.Duration) int {
	// The most k with 9/8 x (idle + k x interval) < userTimeout. The first
	// probe is always sent.
	return max(int(((8*userTimeout-1)/9-idle)/interval), 0)
}

// lastRetransmission returns when, counted from the first send, the last
// retransmission is surely sent. With a timeout of rto they are due at
// rto x (1, 3, 7, 15, ...); the user timeout counts from the first of them
// (tcp_retransmit_timer, retransmits_timed_out), and a timer that finds it
// passed ends the connection instead. An outage that begins with the send and
// is over by then is survived (kernel-facts T8).
//
// For any rto: where t is the last and the next, due at 2t + rto, is not sure,
// 9/8 x (2t + rto - rto) >= user timeout, so that t >= 4/9 x user timeout.
func lastRetransmission(userTimeout, rto time.Duration) time.Duration {
	last := rto
	for next := 2*last + rto; late(next-rto) < userTimeout; next = 2*last + rto {
		last = next
	}
	return last
}
