// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/netns/registry"
)

// errNotConfirmed says that nothing was done.
var errNotConfirmed = errors.New("nothing was detached: answer y, or give --yes")

func newDetach(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "detach",
		Short: "Take the programs off, and remove everything that is pinned",
		Long: `Take the BPF programs that an agent has left off their cgroup, and remove every
link, map and pin of theirs. From then on connections open unbounded. It refuses
while an agent runs.

Connections that are open keep the options that they have, unless --restore is
given: then each gets back what its application last asked for, in every network
namespace, keepalive switched off included. That needs Linux 5.15. One whose user
timeout would become shorter has to wait until its peer is heard from, so that the
change costs no connection; --restore waits up to 15 s for that, and says how many
keep what they have. One whose peer does not read by then has its application's user
timeout from then on.

It asks before it does anything, unless --yes is given.`,
		Example: `  sudo sockhealth detach
  sudo sockhealth detach --restore --yes`,
		Args: noArgs,
	}
	f := cmd.Flags()
	bpffs := f.String("bpffs", loader.DefaultPins, "`DIR` on bpffs where the programs are pinned")
	restore := f.Bool("restore", false, "give connections back the options that their applications asked for")
	keep := f.Bool("keep", true, "leave connections the options that they have")
	yes := f.Bool("yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("keep") && *keep == *restore {
			return usagef("--keep and --restore are each other's opposite: give one of them")
		}
		return detach(cmd.Context(), e, *bpffs, *restore, *yes)
	}
	return cmd
}

// detach removes what is pinned in a directory.
func detach(ctx context.Context, e *env, dir string, restore, yes bool) (err error) {
	if err := loader.Require(); err != nil {
		return err
	}
	pins, err := loader.FindPins(dir)
	if errors.Is(err, fs.ErrNotExist) {
		_, err = fmt.Fprintf(e.stdout, "nothing is pinned at %s\n", dir)
		return err
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pins.Close()) }()
	if !yes && !confirmed(e, dir) {
		return errNotConfirmed
	}
	var done string
	if restore {
		if done, err = restored(ctx, e, pins); err != nil {
			return err
		}
	} else {
		left(e, pins)
	}
	if err := pins.Remove(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.stdout, "%sdetached, and removed %s\n", done, dir)
	return err
}

// confirmed asks.
func confirmed(e *env, dir string) bool {
	fmt.Fprintf(e.stderr, "Take off the programs pinned at %s? From then on connections open unbounded. [y/N] ", dir)
	line, err := bufio.NewReader(e.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes"
}

// What --restore takes: a pass over all namespaces, until nothing waits.
const (
	restoreLimit  = 15 * time.Second
	restorePause  = 200 * time.Millisecond
	restoreBudget = 1000 // keepalives of a pass: 5,000 a second
)

// restored gives every connection its options back, and says how it went.
func restored(ctx context.Context, e *env, pins *loader.Pins) (string, error) {
	p, err := loader.LoadPinned(pins, nil)
	if err != nil {
		return "", err
	}
	defer p.Close()
	if err := p.Release(); err != nil {
		return "", err
	}
	spaces, err := spacesOf(e, p)
	if err != nil {
		return "", err
	}
	released, pending, err := releaseAll(ctx, p, spaces)
	if err != nil {
		return "", err
	}
	kept := ""
	if pending > 0 {
		kept = fmt.Sprintf(", %d keep a part of what they have", pending)
	}
	return fmt.Sprintf("%d connections have back what their applications asked for%s\n", released, kept), nil
}

// spacesOf returns the namespaces that are in sight, which the caller closes.
func spacesOf(e *env, p *loader.Programs) ([]*netns.NS, error) {
	spaces, err := registry.New(p)
	if err != nil {
		return nil, err
	}
	defer spaces.Close()
	if err := spaces.Refresh(); err != nil {
		fmt.Fprintf(e.stderr, "sockhealth: some network namespaces cannot be seen, connections there keep the options that they have: %v\n", err)
	}
	return spaces.All(), nil
}

// left takes leave of the connections that are being made: nobody would give them
// their own user timeout back later. Where that does not go, the programs come off
// all the same.
func left(e *env, pins *loader.Pins) {
	err := leavePinned(e, pins)
	if err != nil && !errors.Is(err, loader.ErrUnsupported) {
		fmt.Fprintf(e.stderr, "sockhealth: connections that are being made may keep the user timeout of connect(): %v\n", err)
	}
}

func leavePinned(e *env, pins *loader.Pins) error {
	p, err := loader.LoadPinned(pins, nil)
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Leave(); err != nil {
		return err
	}
	spaces, err := spacesOf(e, p)
	if err != nil {
		return err
	}
	return leaveConnects(p, spaces)
}

// leaveLimit is how long that may take: a locked socket holds up a pass.
const leaveLimit = 5 * time.Second

// leaveConnects gives every connect() under way its own user timeout back, and
// closes the handles of the namespaces.
func leaveConnects(p *loader.Programs, spaces []*netns.NS) error {
	done := make(chan error, 1)
	go func() {
		var errs []error
		for _, ns := range spaces {
			err := ns.Do(func() error {
				if err := guardOnce(p); err != nil {
					return err
				}
				_, err := p.Adopt(loader.AdoptOptions{Connects: true}, func(loader.Adoption) error { return nil })
				return err
			})
			errs = append(errs, err, ns.Close())
		}
		done <- errors.Join(errs...)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(leaveLimit):
		return errors.New("a walk over the sockets is held up")
	}
}

// releaseAll goes over the namespaces, and closes their handles, until nothing waits any more, or too long.
func releaseAll(ctx context.Context, p *loader.Programs, spaces []*netns.NS) (released, pending uint64, err error) {
	defer func() {
		for _, ns := range spaces {
			_ = ns.Close()
		}
	}()
	for began := time.Now(); ; {
		now, pending, err := releasePass(p, spaces)
		released += now
		if err != nil || pending == 0 {
			return released, pending, err
		}
		if time.Since(began) > restoreLimit {
			if err := unguard(p, spaces); err != nil {
				return released, pending, err
			}
			now, pending, err = releasePass(p, spaces)
			return released + now, pending, err
		}
		select {
		case <-ctx.Done():
			return released, pending, ctx.Err()
		case <-time.After(restorePause):
		}
	}
}

// guardOnce gives back what the guard holds in the namespace of the calling thread for
// peers that read by now.
func guardOnce(p *loader.Programs) error {
	err := p.Guard(time.Second, func(loader.Guarded) error { return nil })
	if errors.Is(err, loader.ErrUnsupported) {
		return nil // there is no guard
	}
	return err
}

// unguard gives peers that still do not read what their applications asked for.
func unguard(p *loader.Programs, spaces []*netns.NS) error {
	for _, ns := range spaces {
		if err := ns.Do(p.Unguard); err != nil && !errors.Is(err, loader.ErrUnsupported) {
			return err
		}
	}
	return nil
}

// releasePass goes over them once. A connection is counted when it has all its
// options back.
func releasePass(p *loader.Programs, spaces []*netns.NS) (released, pending uint64, err error) {
	for _, ns := range spaces {
		err := ns.Do(func() error {
			if err := guardOnce(p); err != nil {
				return err
			}
			stats, err := p.Adopt(loader.AdoptOptions{Release: true, Budget: restoreBudget}, func(a loader.Adoption) error {
				if a.Outcome == loader.Released && a.Wait == loader.WaitNone {
					released++
				}
				return nil
			})
			pending += stats.Pending()
			return err
		})
		if err != nil {
			return released, pending, err
		}
	}
	return released, pending, nil
}
