// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"time"

	"github.com/sockhealth/sockhealth/internal/conn"
)

const (
	// slice is how much CPU a scan takes at a stretch, and idle how many times as
	// long it rests then: it never takes more than a twentieth of a core.
	slice = 5 * time.Millisecond
	idle  = 19
)

// pace rests a scan now and then, and counts its CPU. It is for one thread. A nil
// one does neither.
type pace struct {
	used  time.Duration
	begun time.Duration // the thread's CPU at the last count
}

// begin counts from here on, on the calling thread.
func (p *pace) begin() {
	if p != nil {
		p.begun = conn.ThreadCPU()
	}
}

// breathe counts, and rests if it is time to.
func (p *pace) breathe(ctx context.Context) error {
	if p == nil {
		return ctx.Err()
	}
	took := conn.ThreadCPU() - p.begun
	if took < slice {
		return ctx.Err()
	}
	p.end()
	if err := sleep(ctx, idle*took); err != nil {
		return err
	}
	p.begin()
	return nil
}

// end counts what is not counted yet.
func (p *pace) end() {
	if p == nil {
		return
	}
	now := conn.ThreadCPU()
	p.used += now - p.begun
	p.begun = now
}

// sleep waits, and returns ctx's error where that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
