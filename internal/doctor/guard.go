// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"time"

	"github.com/sockhealth/sockhealth/internal/kernel"
	"github.com/sockhealth/sockhealth/internal/loader"
)

// guardPlans are about peers that are alive and do not read.
func guardPlans() []plan {
	return []plan{
		{
			name: kernel.Guard.String(), try: guard, now: has(kernel.Guard),
			lost:   kernel.Guard.Without(),
			remedy: runLinux(kernel.Guard),
		},
		{
			name: kernel.RTOCap.String(), try: rtoCap, now: has(kernel.RTOCap),
			lost:   kernel.RTOCap.Without(),
			remedy: runLinux(kernel.RTOCap),
		},
	}
}

// guard makes one survey and one pass. Nobody's window is shut on the bench.
func guard(b *bench) (string, error) {
	if err := b.ready(); err != nil {
		return "", err
	}
	if _, err := b.programs.SurveyWindows(); err != nil {
		return "", err
	}
	n := 0
	err := b.ns.Do(func() error {
		return b.programs.Guard(time.Second, func(loader.Guarded) error { n++; return nil })
	})
	if err == nil && n > 0 {
		err = fmt.Errorf("guards %d connections whose peers read", n)
	}
	return "the user timeout spares a peer that does not read", err
}

// rtoCap asks what the programs made of the kernel.
func rtoCap(b *bench) (string, error) {
	if b.programs == nil {
		return "", fmt.Errorf("%w: needs the programs", errUntested)
	}
	return "TCP_RTO_MAX_MS is there", b.programs.Lacks(kernel.RTOCap)
}
