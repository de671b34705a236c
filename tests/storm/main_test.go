package storm_test

import (
	"testing"

	"github.com/seed-8c25f305/watchlock/internal/locktest"
)

func TestMain(m *testing.M) { locktest.Main(m) }
