// Package leader lets one coordinator at a time lead, by the Lease
// kube-system/shoal-coordinator. The times are upstream's, each by one's own clock:
//
//	        renewed       may be tried again       stops       followed
//	holder     ├── 4 s ──────────┼───── every 2 s ────┤ 10 s
//	others     ├──────────── seen unchanged ───────────────────────┤ 15 s
//
// Who stops well gives the Lease up, and is followed at once. So is who died where
// nobody else can compete (Elector.Alone).
package leader
