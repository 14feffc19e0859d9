// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/loader"
	"golang.org/x/sync/errgroup"
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
	// Incidents are those to play, by name; none means every one.
	Incidents []string
	// Out gets the heads, the progress and, where a figure does not hold, what
	// the processes said. A terminal gets one line that is written over, any
	// other a line now and then. nil discards them.
	Out io.Writer
}

// Incidents lists the names of the incidents.
func Incidents() []string { return []string{poolName, callName} }

// Run plays the incidents and returns what was measured, which takes some 80
// seconds for the pool and 25 for the call, both at the same time. The result says whether every figure held; that one did not is no
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
	for _, name := range opts.Incidents {
		if !slices.Contains(Incidents(), name) {
			return nil, fmt.Errorf("no incident %q, there are: %s", name, strings.Join(Incidents(), ", "))
		}
	}
	if opts.Out == nil {
		opts.Out = io.Discard
	}
	s, err := newStage(opts.Exe)
	if err != nil {
		return nil, fmt.Errorf("set up the demo: %w", err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return play(ctx, s, &opts)
}

// play plays the incidents at the same time. The first that cannot be played
// ends the others.
func play(ctx context.Context, s *stage, opts *Options) (*Result, error) {
	var pool, call *Incident
	var said bytes.Buffer // of the call incident, which ends beside the pool's progress
	both, ctx := errgroup.WithContext(ctx)
	// To set up a bed takes the machine's whole attention: one at a time.
	struck := make(chan struct{})
	if opts.plays(poolName) {
		tellPool(opts.Out)
		both.Go(func() (err error) {
			if pool, err = playPool(ctx, s, opts.Out, struck); err != nil {
				return fmt.Errorf("play the pool incident: %w", remedied(err))
			}
			return nil
		})
	} else {
		close(struck)
	}
	if opts.plays(callName) {
		tellCalls(opts.Out)
		both.Go(func() (err error) {
			select {
			case <-struck:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if call, err = playCalls(ctx, s, &said); err != nil {
				return fmt.Errorf("play the call incident: %w", remedied(err))
			}
			return nil
		})
	}
	err := both.Wait()
	_, tellErr := said.WriteTo(opts.Out)
	if err = errors.Join(err, tellErr); err != nil {
		return nil, err
	}
	result := new(Result)
	for _, i := range []*Incident{pool, call} {
		if i != nil {
			result.Incidents = append(result.Incidents, *i)
		}
	}
	return result, nil
}

// plays reports whether an incident is to be played.
func (o *Options) plays(name string) bool {
	return len(o.Incidents) == 0 || slices.Contains(o.Incidents, name)
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
