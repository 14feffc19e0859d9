// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// maxElapsed is the oldest call the agent hears about.
const maxElapsed = time.Hour

// NewRequest builds the report about a call on c that was written the time
// elapsed ago. c may be anything whose LocalAddr and RemoteAddr are those of a
// TCP socket, a *tls.Conn too. An age below zero becomes 0 and one over an hour
// an hour: the agent refuses others.
//
// The error says that c is no TCP connection.
func NewRequest(c net.Conn, elapsed time.Duration) (Request, error) {
	local, err := addrPort(c.LocalAddr())
	if err != nil {
		return Request{}, fmt.Errorf("build report: local address: %w", err)
	}
	peer, err := addrPort(c.RemoteAddr())
	if err != nil {
		return Request{}, fmt.Errorf("build report: remote address: %w", err)
	}
	elapsed = min(max(elapsed, 0), maxElapsed)
	// Rounded up: a call taken for older than it is counts a little more
	// as life, never as death.
	ms := (elapsed + time.Millisecond - 1) / time.Millisecond
	return Request{Local: local.String(), Peer: peer.String(), ElapsedMS: int64(ms)}, nil
}

// addrPort returns an address as the packets carry it: unmapped and without a
// zone.
func addrPort(a net.Addr) (netip.AddrPort, error) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp == nil {
		return netip.AddrPort{}, fmt.Errorf("%v (%T) is no TCP address", a, a)
	}
	ap := tcp.AddrPort()
	if !ap.IsValid() || ap.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is no address and port of a connection", tcp.String())
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()), nil
}
