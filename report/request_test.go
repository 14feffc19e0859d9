// SPDX-License-Identifier: Apache-2.0

package report

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeConn has addresses and nothing else.
type fakeConn struct {
	net.Conn
	local, remote net.Addr
}

func (c fakeConn) LocalAddr() net.Addr  { return c.local }
func (c fakeConn) RemoteAddr() net.Addr { return c.remote }

func tcp(ip string, port int, zone string) *net.TCPAddr {
	return &net.TCPAddr{IP: net.ParseIP(ip), Port: port, Zone: zone}
}

func TestNewRequest(t *testing.T) {
	v4 := fakeConn{local: tcp("10.1.1.1", 40122, ""), remote: tcp("10.20.1.2", 7100, "")}
	for _, tc := range []struct {
		name    string
		conn    net.Conn
		elapsed time.Duration
		want    Request
	}{
		{"v4", v4, 2 * time.Second, Request{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", ElapsedMS: 2000}},
		{"v6", fakeConn{local: tcp("fd00::1", 1, ""), remote: tcp("fd00::2", 2, "")}, 0,
			Request{Local: "[fd00::1]:1", Peer: "[fd00::2]:2"}},
		{"mapped", fakeConn{local: tcp("::ffff:10.1.1.1", 1, ""), remote: tcp("::ffff:10.1.1.2", 2, "")}, 0,
			Request{Local: "10.1.1.1:1", Peer: "10.1.1.2:2"}},
		{"zone", fakeConn{local: tcp("fe80::1", 1, "eth0"), remote: tcp("fe80::2", 2, "eth0")}, 0,
			Request{Local: "[fe80::1]:1", Peer: "[fe80::2]:2"}},
		{"tls", tls.Client(v4, &tls.Config{}), 0, Request{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100"}},
		{"rounded up", v4, time.Millisecond + 1, Request{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", ElapsedMS: 2}},
		{"negative", v4, -time.Second, Request{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100"}},
		{"ancient", v4, 3 * time.Hour, Request{Local: "10.1.1.1:40122", Peer: "10.20.1.2:7100", ElapsedMS: 3_600_000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := NewRequest(tc.conn, tc.elapsed)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestNewRequestNoTCP(t *testing.T) {
	good := tcp("10.1.1.1", 1, "")
	unix := &net.UnixAddr{Name: "/run/x.sock", Net: "unix"}
	for _, tc := range []struct {
		conn fakeConn
		want string
	}{
		{fakeConn{local: unix, remote: good}, "build report: local address: /run/x.sock (*net.UnixAddr) is no TCP address"},
		{fakeConn{local: good, remote: unix}, "build report: remote address: /run/x.sock (*net.UnixAddr) is no TCP address"},
		{fakeConn{local: good}, "build report: remote address: <nil> (<nil>) is no TCP address"},
		{fakeConn{local: good, remote: tcp("10.1.1.2", 0, "")}, `build report: remote address: "10.1.1.2:0" is no address and port of a connection`},
		{fakeConn{local: good, remote: &net.TCPAddr{Port: 5}}, `build report: remote address: ":5" is no address and port of a connection`},
	} {
		_, err := NewRequest(tc.conn, 0)
		if err == nil || err.Error() != tc.want {
			t.Errorf("error %v, want %s", err, tc.want)
		}
	}
}
