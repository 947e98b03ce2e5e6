package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Meter continues only for the packets of the loaded key that are over the
// rate a second; the set, which must be dynamic, holds a count for each key.
func Meter(s *nftables.Set, rate uint64, burst uint32) []expr.Any {
	return []expr.Any{&expr.Dynset{
		SrcRegKey: reg0, SetName: s.Name, SetID: s.ID, Operation: uint32(unix.NFT_DYNSET_OP_UPDATE),
		Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond, Burst: burst, Over: true}},
	}}
}
