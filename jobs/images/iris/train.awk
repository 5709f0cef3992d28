# An averaged perceptron of several classes on rows `measure,…,class`; every fifth row is kept for the test.
# It takes no logarithm and no root: the awk of small images may have none.

BEGIN { FS = "," }

{
    rows++
    for (i = 1; i < NF; i++) {
        x[rows, i] = $i
        if (rows == 1 || $i < low[i]) low[i] = $i
        if (rows == 1 || $i > high[i]) high[i] = $i
    }
    class[rows] = $NF + 0
    if (class[rows] >= classes) classes = class[rows] + 1
    measures = NF - 1
}

# The class whose weights score highest.
function best(weight, row,    k, i, score, found, highest) {
    for (k = 0; k < classes; k++) {
        score = weight[k, 0]
        for (i = 1; i <= measures; i++) score += weight[k, i] * x[row, i]
        if (k == 0 || score > highest) {
            highest = score
            found = k
        }
    }
    return found
}

# Moves a class's weights along a row; `moved` counts what the average is short of the sum.
function move(k, row, step,    i) {
    weight[k, 0] += step
    moved[k, 0] += seen * step
    for (i = 1; i <= measures; i++) {
        weight[k, i] += step * x[row, i]
        moved[k, i] += seen * step * x[row, i]
    }
}

END {
    for (i = 1; i <= measures; i++)
        for (row = 1; row <= rows; row++) x[row, i] = (x[row, i] - low[i]) / (high[i] - low[i])
    for (epoch = 1; epoch <= epochs; epoch++) {
        mistakes = 0
        for (n = 0; n < rows; n++) {
            row = n * 37 % rows + 1 # the file is in the order of the classes
            if (row % 5 == 0) continue
            guess = best(weight, row)
            if (guess != class[row]) {
                move(class[row], row, 1)
                move(guess, row, -1)
                mistakes++
            }
            seen++
        }
        if (epoch == 1 || epoch % 20 == 0) printf "epoch %d mistakes %d\n", epoch, mistakes
    }
    for (k = 0; k < classes; k++)
        for (i = 0; i <= measures; i++) average[k, i] = weight[k, i] - moved[k, i] / seen
    for (row = 5; row <= rows; row += 5) {
        right += best(average, row) == class[row]
        tested++
    }
    printf "accuracy %.4f on %d rows that it was not trained on\n", right / tested, tested
    printf "{\"accuracy\": %.4f, \"rows\": %d, \"epochs\": %d, \"weights\": [", right / tested, rows, epochs > model
    for (k = 0; k < classes; k++) {
        printf "%s[%.6f", k ? ", " : "", average[k, 0] > model
        for (i = 1; i <= measures; i++) printf ", %.6f", average[k, i] > model
        printf "]" > model
    }
    printf "]}\n" > model
}
