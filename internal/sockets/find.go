// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/netns"
	"github.com/sockhealth/sockhealth/internal/sockdiag"
)

// findable are the states that carry a connection, or may still do, or may do soon.
var findable = [...]conn.State{
	conn.SynSent, conn.Established, conn.FinWait1, conn.FinWait2, conn.CloseWait, conn.LastAck, conn.Closing,
}

// Find returns the connections with this local address, or this cookie; the one
// not given is the zero value. The connections of one listener share their local
// address.
//
// It takes one dump of the namespace's sockets by inet_diag. Where the kernel has
// none it takes one Scan, which waits where an application holds the lock of a
// socket; a connection whose cookie nobody has asked for yet, which no managed one
// is, then has none. Where the kernel has neither, the error wraps
// sockdiag.ErrUnsupported and loader.ErrUnsupported.
func (s *Sockets) Find(ns *netns.NS, local netip.AddrPort, cookie uint64) ([]conn.Snapshot, error) {
	wanted := func(id *conn.ID) bool {
		return (!local.IsValid() || id.Local == local) && (cookie == 0 || id.Cookie == cookie)
	}
	ids, err := s.listed(ns, local.Port(), wanted)
	if errors.Is(err, sockdiag.ErrUnsupported) {
		var serr error
		if ids, serr = s.scanned(ns, wanted); serr != nil {
			return nil, fmt.Errorf("find sockets by inet_diag: %w; by scan: %w", err, serr)
		}
		err = nil
	}
	if err != nil {
		return nil, err
	}
	var out []conn.Snapshot
	for _, id := range ids {
		snap, err := s.lookOnce(ns, id)
		if errors.Is(err, ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, snap)
	}
	return out, nil
}

// listed asks inet_diag; port narrows the list, 0 does not.
func (s *Sockets) listed(ns *netns.NS, port uint16, wanted func(*conn.ID) bool) (ids []conn.ID, err error) {
	c, err := s.dial(ns)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	err = c.List(sockdiag.Filter{States: sockdiag.States(findable[:]...), LocalPort: port}, func(have sockdiag.Socket) error {
		if wanted(&have.ID) {
			ids = append(ids, have.ID)
		}
		return nil
	})
	return ids, err
}

// scanned walks. The snapshots themselves are of no use: the walk holds the lock
// of each socket, so that each looks locked.
func (s *Sockets) scanned(ns *netns.NS, wanted func(*conn.ID) bool) (ids []conn.ID, err error) {
	err = s.Scan(ns, func(have conn.Snapshot) error {
		if wanted(&have.ID) && slices.Contains(findable[:], have.State) {
			ids = append(ids, have.ID)
		}
		return nil
	})
	return ids, err
}
