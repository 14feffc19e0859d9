// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"

	"github.com/sockhealth/sockhealth/internal/kernel"
)

// watch loads what finds requests that stay unanswered.
func watch(b *bench) (string, error) {
	if b.programs == nil {
		return "", fmt.Errorf("%w: needs the programs", errUntested)
	}
	return "requests that stay unanswered can be found", b.programs.Lacks(kernel.Silence)
}
