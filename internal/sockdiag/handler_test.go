// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"errors"
	"fmt"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/conn"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
)

// noHandler is a protocol for experiments (RFC 3692): no kernel has a handler.
const noHandler = 253

// TestENOENT: a kernel without the handler is not a kernel without the socket.
func TestENOENT(t *testing.T) {
	exact := &netlink.OpError{Op: "receive", Err: unix.ENOENT}
	for name, c := range map[string]struct {
		listed error
		want   error
		not    []error
	}{
		"a handler lists": {nil, ErrGone, []error{ErrUnsupported}},
		"none does":       {fmt.Errorf("%w: %w", ErrUnsupported, unix.ENOENT), ErrUnsupported, []error{ErrGone}},
		"not known":       {unix.ENOBUFS, unix.ENOBUFS, []error{ErrGone, ErrUnsupported}},
	} {
		err := enoent(exact, c.listed)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		for _, not := range c.not {
			if errors.Is(err, not) {
				t.Errorf("%s: %v is also %v", name, err, not)
			}
		}
	}
	for errno, want := range map[unix.Errno]error{unix.ESTALE: ErrGone, unix.EOPNOTSUPP: ErrUnsupported, unix.EPERM: ErrPermission} {
		if err := edge(&netlink.OpError{Err: errno}); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", errno, err, want)
		}
	}
}

// TestNoHandler asks this kernel, of a protocol that has a handler and of one
// that has none.
func TestNoHandler(t *testing.T) {
	ns := labtest.Netns(t)
	nobody := id("10.91.1.2:40122", "10.91.2.2:7100", unix.AF_INET)
	nobody.Netns, nobody.Cookie = ns.Inode(), 71
	six := id("[fd91::1]:40122", "[fd91::2]:7100", unix.AF_INET6)
	six.Netns, six.Cookie = ns.Inode(), 71
	for protocol, want := range map[uint8]error{unix.IPPROTO_TCP: ErrGone, noHandler: ErrUnsupported} {
		c, err := Dial(ns)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.protocol = protocol
		for range 2 { // what was learnt does not turn the answer round
			for _, one := range []conn.ID{nobody, six} {
				if _, err := c.Get(one); !errors.Is(err, want) {
					t.Errorf("protocol %d: get %s: %v, want %v", protocol, one, err, want)
				}
				if err := c.Destroy(one); !errors.Is(err, want) {
					t.Errorf("protocol %d: destroy %s: %v, want %v", protocol, one, err, want)
				}
			}
			if c.answered != (want == ErrGone) {
				t.Errorf("protocol %d: a handler answered: %v", protocol, c.answered)
			}
		}
		err = c.List(Filter{}, func(Socket) error { return nil })
		if supported := err == nil; supported != (want == ErrGone) || !supported && !errors.Is(err, ErrUnsupported) {
			t.Errorf("protocol %d: list: %v", protocol, err)
		}
	}
}
