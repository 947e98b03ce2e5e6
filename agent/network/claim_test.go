package network

import "testing"

func TestClaim(t *testing.T) {
	first, err := Claim("br-claim", "t")
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Claim("br-claim", "t"); err == nil {
		second.Close()
		t.Error("a second agent got the same bridge")
	}
	first.Close()
	again, err := Claim("br-claim", "t")
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}
