// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab"
)

// strike makes the router count, brings about each case's fault, and has the
// client call.
func (r *callRun) strike(ctx context.Context) error {
	for i, c := range r.cases {
		for _, t := range c.tallies {
			counter, err := r.lab.Count(r.match(i, t))
			if err != nil {
				return err
			}
			r.counts[i] = append(r.counts[i], counter)
		}
		if err := r.hit(ctx, i); err != nil {
			return fmt.Errorf("bring about %q: %w", c.name, err)
		}
	}
	r.mu.Lock()
	r.zero = conn.Now()
	zero := r.zero
	r.mu.Unlock()
	for i, c := range r.cases {
		if c.noSocket {
			peer := r.peerOf(i, callChannel{})
			if err := r.order(order{Do: orderReport, Case: i, Peer: peer.String(), At: zero}); err != nil {
				return err
			}
		}
		for _, s := range c.calls {
			o := order{Do: orderCall, Case: i, Name: s.name, Channel: s.channel, At: zero + s.at, Work: s.work, Fail: s.fail}
			if err := r.order(o); err != nil {
				return err
			}
		}
	}
	return nil
}

// match names the packets of a tally.
func (r *callRun) match(n int, t tally) lab.Match {
	m := lab.Match{Dst: lab.Only(r.lab.Servers[n].Addr4)}
	if t.channel != "" {
		id := r.ids[channelKey{n, t.channel}]
		m = lab.Between(id.Local, id.Remote)
		m.Both = false
	}
	switch t.what {
	case packetsSYN:
		m.Set, m.Clear = lab.SYN, lab.ACK
	case packetsReset:
		m.Set = lab.RST
	case packetsBare:
		m.Clear, m.MaxLen = lab.RST, bareLen
	}
	return m
}

// hit brings about a case's fault.
func (r *callRun) hit(ctx context.Context, n int) error {
	c := &r.cases[n]
	switch c.fault {
	case faultPeer:
		_, err := r.lab.Drop(lab.Match{Dst: lab.Only(r.lab.Servers[n].Addr4), Both: true})
		return err
	case faultOne:
		id := r.ids[channelKey{n, c.channels[0].name}]
		_, err := r.lab.StateLoss(id.Local, id.Remote)
		return err
	case faultStop:
		return r.peers[n].pause(ctx)
	}
	return nil
}

// pause stops the process and returns when it does nothing any more.
func (p *process) pause(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			return fmt.Errorf("stop %s: %w", p.name, err)
		}
		if strings.Contains(string(stat), ") T ") {
			return nil
		}
		if !sleep(ctx, time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// goOn has a process that was paused go on.
func (p *process) goOn() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue %s: %w", p.name, err)
	}
	return nil
}
