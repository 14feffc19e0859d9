// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"os"

	"github.com/sockhealth/sockhealth/internal/lab"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// bed is what one run is played on. The first method that fails may leave things
// behind; close removes them in any case.
type bed struct {
	stage *stage
	title string // for messages, after the name of a process
	dir   string // its files

	lab    *lab.Lab
	diag   *sockdiag.Conn // in the client's namespace
	cgroup *lab.Cgroup    // nil without an agent
	procs  []*process
	undo   []func() error
}

// build makes the folder and the lab.
func (b *bed) build(servers int) error {
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	var err error
	if b.lab, err = lab.New(lab.Options{Servers: servers}); err != nil {
		return err
	}
	b.later(b.lab.Close)
	if b.diag, err = sockdiag.Dial(b.lab.Client); err != nil {
		return err
	}
	b.later(b.diag.Close)
	return nil
}

// later has close call fn, the last first.
func (b *bed) later(fn func() error) { b.undo = append(b.undo, fn) }

// close ends the processes and removes what there is.
func (b *bed) close() error {
	var errs []error
	for i := len(b.undo) - 1; i >= 0; i-- {
		errs = append(errs, b.undo[i]())
	}
	b.undo = nil
	return errors.Join(errs...)
}

// start starts a process that close ends.
func (b *bed) start(c command) (*process, error) {
	c.name += " of " + b.title
	p, err := b.stage.spawner.start(c)
	if err != nil {
		return nil, err
	}
	b.procs = append(b.procs, p)
	b.later(func() error { p.stop(); return nil })
	return p, nil
}

// died returns the error of a process that ended before its time.
func (b *bed) died() error {
	for _, p := range b.procs {
		if p.hasEnded() {
			return p.ended()
		}
	}
	return nil
}
