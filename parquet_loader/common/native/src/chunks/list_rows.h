/* Reads rows of column chunks that are lists of any length. */
#ifndef LIST_ROWS_H
#define LIST_ROWS_H

#include "column.h"

/* Writes the next rows, which are lists. FULL: there was space for some of them only. */
int read_lists(RowGroup *group, Column *column, ListRows *rows);

#endif
