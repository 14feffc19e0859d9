// SPDX-License-Identifier: Apache-2.0

package census

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/container"
)

// Remembered bounds the cgroups that are remembered: the ones that were asked for,
// or seen, last.
const Remembered = 8192

// Census knows the cgroups of one hierarchy. It must be closed.
type Census struct {
	root string
	dir  *os.File
	wake chan struct{}

	// walking is held by a walk. It is taken before mu.
	walking sync.Mutex
	next    time.Time // when the next walk may begin at the earliest; held by walking

	mu    sync.Mutex
	known memory
}

// New returns a census of the hierarchy whose root is mounted there
// (loader.CgroupRoot). It knows nothing yet.
func New(root string) (*Census, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open root of the cgroups: %w", err)
	}
	return &Census{root: filepath.Clean(root), dir: dir, wake: make(chan struct{}, 1), known: newMemory(Remembered)}, nil
}

// Close lets go of the hierarchy.
func (c *Census) Close() error { return c.dir.Close() }

// Of returns the container that the cgroup with this id is, the zero value where it
// is none, is not known, or the id is 0.
func (c *Census) Of(id uint64) container.ID {
	if id == 0 {
		return container.ID{}
	}
	if who, ok := c.recall(id); ok {
		return who
	}
	path, err := c.open(id)
	switch {
	case err == nil:
		return c.remember(id, container.Parse(path))
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EOPNOTSUPP): // see doc.go
		c.walk()
		who, _ := c.recall(id)
		return who
	case errors.Is(err, unix.ESTALE):
		return c.remember(id, container.ID{}) // gone, and it comes no more
	}
	return container.ID{} // no memory or no descriptor is free: the next may know
}

func (c *Census) recall(id uint64) (container.ID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known.get(id)
}

func (c *Census) remember(id uint64, who container.ID) container.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.put(id, who)
	return who
}
