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

	"github.com/spf13/cobra"

	"github.com/sockhealth/sockhealth/internal/loader"
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

Where an application keeps a socket locked, its network namespace is named and left
as it is, and the command ends when the socket is free again.

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
		left(ctx, e, pins)
		if err := ctx.Err(); err != nil {
			return err // nothing is lost: another detach goes on
		}
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
