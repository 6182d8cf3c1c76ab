/*
 * check.h — what of a configuration goes together and what does not.
 *
 * Threads: the owner's.
 */
#ifndef PR_CHECK_H
#define PR_CHECK_H

#include "config/config.h"
#include "config/mistakes.h"

/* Single values have been checked; names that were not found are NULL. */
/* Why a setting of librdkafka may not be given; NULL: it may. */
const char *setting_refusal(const char *name);

/* Fills in what a table of the user's own leaves to its default, and checks it. */
void config_check_tables(struct config *config, struct mistakes *m);

void config_check_together(const struct config *config, struct mistakes *mistakes);

#endif
