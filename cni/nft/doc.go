// Package nft is the one way in which Shoal's parts say nftables: words, rules of
// them, tables of rules and sets, and what leads from one table to another. It
// knows no rule of its own.
//
//	Field ── Key ──┐                                      nfttest.Dump: what the
//	ip daddr       ├─ Statement ── Rule ── Chain ─┐        kernel has, by nft(8)
//	meta l4proto   │  @set goto x          hook   ├─ Objects ── String ─┘ the same text
//	               └─ Set: what keys it has ──────┘    │
//	                   Elements: Data by Data ─────────┤
//	                                                   ├─ Conn.Reset: whatever the table
//	                                                   │   holds, it becomes this
//	                                  Diff(had, want) ─┴─ Conn.Apply: what differs
//
// A rule has one form, a list of statements. Its text, as nft lists it, and the
// expressions that the kernel runs are both made from that; tests compare the
// text of whole tables with what nft says that the kernel has. Addresses are in
// the words of their family, V4 or V6.
//
// Reset and Apply are one transaction each, of one table or of several: the
// kernel takes all of it or nothing. A caller with many objects describes the
// part that changes, before and after, and Diff's cost is that part's.
package nft
