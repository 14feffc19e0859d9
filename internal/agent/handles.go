// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"

	"github.com/sockhealth/sockhealth/internal/netns"
)

// handles keeps one descriptor of a namespace, however many need it. The zero
// value is ready.
type handles struct {
	mu   sync.Mutex
	open map[uint32]*handle
}

type handle struct {
	ns   *netns.NS
	refs int
}

// hold returns a handle that outlives the one it is given, until drop.
func (h *handles) hold(ns *netns.NS) (*netns.NS, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := ns.Inode()
	if have := h.open[k]; have != nil {
		have.refs++
		return have.ns, nil
	}
	own, err := ns.Dup()
	if err != nil {
		return nil, err
	}
	if h.open == nil {
		h.open = make(map[uint32]*handle)
	}
	h.open[k] = &handle{ns: own, refs: 1}
	return own, nil
}

// drop gives back what hold returned.
func (h *handles) drop(ns *netns.NS) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k := ns.Inode()
	have := h.open[k]
	if have.refs--; have.refs == 0 {
		delete(h.open, k)
		have.ns.Close()
	}
}
