// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
)

// A machine waits for most of its time, and needs a processor of its own now and then.
// Another one starts once the share spare of the processors' time was not used for
// a spell, which is as long as a machine takes to boot.
const (
	spell = 4 * time.Second
	spare = 0.12
)

// use tells how much the processors are in use, by this program or others.
type use struct {
	fs   procfs.FS
	last procfs.CPUStat
}

func newUse() (*use, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, fmt.Errorf("find how busy the processors are: %w", err)
	}
	u := &use{fs: fs}
	_, err = u.idle()
	return u, err
}

// idle returns the share of the processors' time that was not used since the last
// call, 0 to 1.
func (u *use) idle() (float64, error) {
	st, err := u.fs.Stat()
	if err != nil {
		return 0, fmt.Errorf("find how busy the processors are: %w", err)
	}
	was, now := u.last, st.CPUTotal
	u.last = now
	idle := now.Idle - was.Idle + now.Iowait - was.Iowait
	busy := now.User - was.User + now.Nice - was.Nice + now.System - was.System +
		now.IRQ - was.IRQ + now.SoftIRQ - was.SoftIRQ + now.Steal - was.Steal
	if idle+busy <= 0 {
		return 0, nil
	}
	return idle / (idle + busy), nil
}
