// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sync/errgroup"
)

// closeAll closes the beds at the same time.
func closeAll(beds []*bed) error {
	errs := make([]error, len(beds))
	var all errgroup.Group
	for i, b := range beds {
		all.Go(func() error {
			errs[i] = b.close()
			return nil
		})
	}
	_ = all.Wait()
	return errors.Join(errs...)
}

// suspects are the beds of which a process has ended, or else all.
func suspects(beds []*bed) []*bed {
	var dead []*bed
	for _, b := range beds {
		if b.died() != nil {
			dead = append(dead, b)
		}
	}
	if dead == nil {
		return beds
	}
	return dead
}

// tellSaid prints the last messages of the beds' processes.
func tellSaid(out io.Writer, beds []*bed) {
	for _, b := range beds {
		for _, p := range b.procs {
			if said := p.log.String(); said != "" {
				fmt.Fprintf(out, "\nLast messages of the %s:\n%s", p.name, said)
			}
		}
	}
}
