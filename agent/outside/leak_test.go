package outside

import (
	"testing"

	"github.com/shoal-project/shoal/tests/leak"
)

// The CRI client leaves a connection behind that was not answered: only the package's own
// goroutines count.
func TestMain(m *testing.M) { leak.CheckOurs(m) }
