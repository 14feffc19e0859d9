// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// The hidden commands of the binary that runs the demo, and their main
// functions here: Client, Peer and Janitor.
const (
	ClientCommand  = "demo-client"
	PeerCommand    = "demo-peer"
	JanitorCommand = "demo-janitor"
)

// Options of Run.
type Options struct {
	// Exe is the binary whose commands play; "" means this process's own.
	Exe string
	// Out gets the head, the progress and, where a figure does not hold, what
	// the processes said. A terminal gets one line that is written over, any
	// other a line now and then. nil discards them.
	Out io.Writer
}

// Run plays the incidents and returns what was measured, which takes some 80
// seconds. The result says whether every figure held; that one did not is no
// error. The error is a *loader.MissingError, or wraps lab.ErrNoCgroup2, where
// this machine lacks something, and wraps ctx's cause where that ended. When
// Run returns, everything it made is gone.
func Run(ctx context.Context, opts Options) (_ *Result, err error) {
	if err := loader.Require(); err != nil {
		return nil, err
	}
	if opts.Exe == "" {
		opts.Exe = "/proc/self/exe"
	}
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	s, err := newStage(opts.Exe)
	if err != nil {
		return nil, fmt.Errorf("set up the demo: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	pool, err := playPool(ctx, s, opts.Out)
	if err != nil {
		return nil, fmt.Errorf("play the pool incident: %w", remedied(err))
	}
	return &Result{Incidents: []Incident{*pool}}, nil
}

// remedied adds the remedy where this machine has no cgroup v2.
func remedied(err error) error {
	if errors.Is(err, lab.ErrNoCgroup2) {
		if _, missing := loader.CgroupRoot(); missing != nil {
			return missing
		}
	}
	return err
}
