// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sockhealth/sockhealth/internal/lab"
)

// stage is what all runs of a demo share: a folder, and who starts processes
// and cleans up. Its methods may be called from any goroutine.
type stage struct {
	dir     string
	spawner *spawner
	janitor *process
	mu      sync.Mutex // guards the janitor's input
}

// newStage leaves nothing behind where it fails.
func newStage(exe string) (*stage, error) {
	s := &stage{spawner: newSpawner(exe)}
	var err error
	s.janitor, err = s.spawner.start(command{name: "janitor", args: []string{JanitorCommand}, survive: true})
	if err != nil {
		s.spawner.close()
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "sockhealth-demo-"); err == nil {
		err = s.remember(keepDir, s.dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make folder: %w", err), s.close())
	}
	return s, nil
}

// remember tells the janitor what to remove should the demo be killed.
func (s *stage) remember(kind, path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.janitor.in, kind+path+"\n"); err != nil {
		return fmt.Errorf("tell janitor of %s: %w", path, err)
	}
	return nil
}

// newCgroup makes a cgroup that goes even if the demo is killed.
func (s *stage) newCgroup() (*lab.Cgroup, error) {
	c, err := lab.NewCgroup("demo")
	if err != nil {
		return nil, err
	}
	if err := s.remember(keepCgroup, c.Path); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// close removes the folder. All processes but the janitor have ended.
func (s *stage) close() error {
	var errs []error
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	errs = append(errs, s.janitor.in.Close())
	if !s.janitor.wait(janitorTimeout + stopTimeout) {
		s.janitor.kill()
	}
	if s.janitor.err != nil {
		errs = append(errs, s.janitor.ended())
	}
	s.spawner.close()
	return errors.Join(errs...)
}
