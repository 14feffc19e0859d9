// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// BenchmarkSilent is a pass of the silence watch over 1,000 and 8,000 connections
// that wait for an answer, none of which is due, beside its rival, a dump of the
// same sockets with tcp_info by inet_diag, which is not even looked into.
func BenchmarkSilent(b *testing.B) {
	bed := loadertest.New(b, `version: 1
defaults: {silence: 24h}
peers: [{name: server, cidrs: [10.91.2.0/24]}]
`)
	loadertest.Need(b, bed.Programs, kernel.Silence)
	ln := labtest.Listen(b, bed.Server, netip.AddrPortFrom(bed.ServerAddr4, 0))
	port := labtest.Addr(ln.Addr()).Port()
	n := 0
	for _, want := range []int{1000, 8000} {
		for ; n < want; n++ {
			c := labtest.Dial(b, bed.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
			labtest.Accept(b, ln)
			if _, err := c.Write([]byte("request")); err != nil {
				b.Fatal(err)
			}
		}
		for _, way := range []struct {
			name string
			pass func() error
		}{
			{"silence", func() error {
				pass, err := bed.Programs.Silent(func(loader.Suspect) {})
				if err == nil && pass.Suspects > 0 {
					err = fmt.Errorf("%d suspects", pass.Suspects)
				}
				return err
			}},
			{"inet_diag", func() error { return bed.Client.Do(func() error { return dump(port, want) }) }},
		} {
			b.Run(fmt.Sprintf("%s/%d", way.name, want), func(b *testing.B) {
				began := processCPU(b)
				for b.Loop() {
					if err := way.pass(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(processCPU(b)-began)/float64(b.N)/float64(want), "cpu-ns/socket")
			})
		}
	}
}

// processCPU is how much CPU the process has used, in nanoseconds.
func processCPU(b *testing.B) int64 {
	b.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return ts.Nano()
}

// dump lists the connections to a port with their tcp_info, and wants that many.
func dump(port uint16, want int) error {
	c, err := netlink.Dial(unix.NETLINK_SOCK_DIAG, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	const inetDiagInfo, established = 2, 1
	req := make([]byte, 56) // struct inet_diag_req_v2
	req[0], req[1], req[2] = unix.AF_INET, unix.IPPROTO_TCP, 1<<(inetDiagInfo-1)
	req[4] = 1 << established
	req[10], req[11] = byte(port>>8), byte(port)
	got, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request | netlink.Dump}, Data: req,
	})
	if err == nil && len(got) != want {
		err = fmt.Errorf("%d sockets, want %d", len(got), want)
	}
	return err
}
