// SPDX-License-Identifier: Apache-2.0

package loader_test

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/lab/labtest"
	"github.com/sockhealth/sockhealth/internal/loader"
	"github.com/sockhealth/sockhealth/internal/loader/loadertest"
)

// BenchmarkGuard is what the guard does every third of the shortest user timeout on a
// node with 5,000 healthy connections: the survey, and, where a window is shut, a pass.
func BenchmarkGuard(b *testing.B) {
	const n = 5000
	bed := loadertest.New(b, bothWays)
	loadertest.Need(b, bed.Programs, kernel.Guard)
	ln := labtest.Listen(b, bed.Server, netip.AddrPortFrom(bed.ServerAddr4, 0))
	for range n {
		labtest.Dial(b, bed.Client, netip.AddrPort{}, labtest.Addr(ln.Addr()))
		labtest.Accept(b, ln)
	}
	for name, do := range map[string]func() error{
		"survey": func() error {
			_, err := bed.Programs.SurveyWindows()
			return err
		},
		"pass": func() error {
			return bed.Client.Do(func() error {
				return bed.Programs.Guard(time.Second, func(loader.Guarded) error { return nil })
			})
		},
	} {
		b.Run(name, func(b *testing.B) {
			before := cpu(b)
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
			// Both ends have a record.
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N)/(2*n), "cpu-ns/record")
		})
	}
}

// cpu returns what this process has taken.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
