// SPDX-License-Identifier: Apache-2.0

package sockdiag

import "testing"

func BenchmarkDecode(b *testing.B) {
	msg := unhex(b, answer4+attributes+shortInfo)
	for b.Loop() {
		if _, err := decode(msg); err != nil {
			b.Fatal(err)
		}
	}
}
