// Package history notes what clients of a register were told, and judges whether it can
// have been one register: whether the answers are linearizable. The search is
// porcupine's; here are the model of a register with unique values, and the rule for
// answers that never came:
//
//	client A  |--write 1--|            |--read 2--|
//	client B         |--write 2 … (no answer: it may take effect at any later time)
package history
