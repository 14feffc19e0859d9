// SPDX-License-Identifier: Apache-2.0

package coverage

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
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
func (p *pace) begin() error {
	if p == nil {
		return nil
	}
	now, err := threadCPU()
	p.begun = now
	return err
}

// breathe counts, and rests if it is time to.
func (p *pace) breathe(ctx context.Context) error {
	if p == nil {
		return ctx.Err()
	}
	now, err := threadCPU()
	if err != nil {
		return err
	}
	took := now - p.begun
	if took < slice {
		return ctx.Err()
	}
	p.end()
	if err := sleep(ctx, idle*took); err != nil {
		return err
	}
	return p.begin()
}

// end counts what is not counted yet.
func (p *pace) end() {
	if p == nil {
		return
	}
	if now, err := threadCPU(); err == nil {
		p.used += now - p.begun
		p.begun = now
	}
}

// threadCPU is how much CPU the calling thread has used.
func threadCPU() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0, fmt.Errorf("read the thread's CPU time: %w", err)
	}
	return time.Duration(ts.Nano()), nil
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
